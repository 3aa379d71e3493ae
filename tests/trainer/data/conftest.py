"""Fixtures of the preparation's tests: small parts, the files that are read, and the processes that tokenize."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from trainingjob_trainer.data.preparation import listed_files, worker_pool
from trainingjob_trainer.data.sources.source_files import SourceFile


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each file of a test be a part."""
    monkeypatch.setattr(listed_files, "PART_BYTES", 20)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that this process reads."""
    found: list[str] = []
    read = SourceFile.read_chunks

    def note(file: SourceFile) -> Iterator[bytes]:
        found.append(file.name)
        return read(file)

    monkeypatch.setattr(SourceFile, "read_chunks", note)
    return found


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return the worker processes that this process starts, two at most."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def note(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 2)
    monkeypatch.setattr(worker_pool.subprocess, "Popen", note)
    yield started
    assert [one.poll() is None for one in started] == [False] * len(started), "a worker outlived its pool"
