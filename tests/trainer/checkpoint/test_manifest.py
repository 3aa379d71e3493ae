"""The pace at which saved files are verified beside training."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.shelf import at
from trainingjob_trainer.checkpoint.manifest import FileHash, RateLimit, hash_files
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.store.posix import CHUNK_BYTES, PosixStore


class Clock:
    """A clock that advances by waits, and by reads of storage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reading: float = 0.0) -> None:
        self.now = 1000.0
        self.waited: list[float] = []
        real = PosixStore.read_chunks

        def read_parts(store: PosixStore, name: str) -> Iterator[bytes]:
            for part in real(store, name):
                self.now += reading
                yield part

        monkeypatch.setattr(PosixStore, "read_chunks", read_parts)
        monkeypatch.setattr("trainingjob_trainer.checkpoint.manifest.time.monotonic", lambda: self.now)

    def watch(self, pace: RateLimit, monkeypatch: pytest.MonkeyPatch) -> None:
        def wait(seconds: float) -> None:
            if not pace._hurry.is_set():
                self.waited.append(seconds)
                self.now += seconds

        monkeypatch.setattr(pace._hurry, "wait", wait)


@pytest.fixture
def folder(tmp_path: Path) -> StepFolder:
    (tmp_path / "large").write_bytes(b"x" * 2 * CHUNK_BYTES)
    (tmp_path / "small").write_bytes(b"y" * (CHUNK_BYTES // 4))
    return at(tmp_path)


NAMES = ("large", "small")


@pytest.mark.parametrize(("reading", "want"), [(0.0, 9.0), (3.0, 11.0), (5.0, 15.0)])
def test_no_more_is_read_than_so_many_bytes_a_second(
    reading: float, want: float, folder: StepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file takes two parts of 4 s each, the second one of 1 s, or as long as storage takes."""
    pace, clock = RateLimit(CHUNK_BYTES // 4), Clock(monkeypatch, reading)
    clock.watch(pace, monkeypatch)

    found = hash_files(folder, NAMES, pace)

    assert clock.now - 1000.0 == pytest.approx(want)
    assert found == hash_files(folder, NAMES)


def test_lifted_rate_limit_does_not_wait(folder: StepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pace, clock = RateLimit(CHUNK_BYTES // 4), Clock(monkeypatch)
    clock.watch(pace, monkeypatch)
    pace.lift()
    hash_files(folder, NAMES, pace)
    assert clock.waited == []

    pace.enable()
    hash_files(folder, NAMES, pace)
    assert sum(clock.waited) == pytest.approx(9.0)


def test_all_processes_compute_the_same_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    want = FileHash(size=3, sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    seen: Any = hash_files(at(tmp_path), ["abc"])

    assert seen == {"abc": want}


def test_manifests_are_read_without_jax() -> None:
    """The simulated storage of the operator's tests uses manifests, in processes that fork."""
    program = "import sys, trainingjob_trainer.checkpoint.manifest; sys.exit('jax' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
