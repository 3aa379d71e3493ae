"""The agent's part in JAX's own cache: when it asks for copies between host and bucket."""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trainer.tiny import SECRET, make_config, make_spec, make_world
from trainingjob_agent import jax_cache_folder, program_cache
from trainingjob_agent.program_cache import ProgramCache
from trainingjob_agent.trainer_protocol import StartWorld

ENTRY, OTHER_ENTRY = (f"jit_train_step-{digit * 64}-cache" for digit in "ab")
BUCKET = "gs://runs/run"
SECONDS = 20.0


class Copies:
    """Records the requests for copies, and answers them."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.requests: queue.Queue[tuple[str, str, str]] = queue.Queue()

    def synchronize(self, root: str, folder: str, secret: str) -> str:
        self.requests.put((root, folder, secret))
        return self.answers.pop(0) if self.answers else ""

    def wait(self) -> tuple[str, str, str]:
        return self.requests.get(timeout=SECONDS)

    def is_idle(self) -> bool:
        try:
            self.requests.get(timeout=0.2)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    found = Copies()
    monkeypatch.setattr(program_cache, "synchronize_cache", found.synchronize)
    monkeypatch.setattr(program_cache, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(jax_cache_folder, "COMPLETE_SECONDS", 0.0)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    return found


@pytest.fixture
def cache() -> Iterator[ProgramCache]:
    """Yield a cache whose thread ends with the test: it would log into later tests."""
    found = ProgramCache()
    yield found
    found.close()
    for thread in threading.enumerate():
        if thread.name == "program-cache":
            thread.join(SECONDS)
            assert not thread.is_alive()


def make_start(tmp_path: Path, uri: str = BUCKET, folder: str = "cache", secret: str = SECRET) -> StartWorld:
    config = make_config(make_spec(tmp_path, tmp_path))
    checkpoint = config.spec.checkpoint.model_copy(update={"uri": uri})
    config = config.model_copy(update={"spec": config.spec.model_copy(update={"checkpoint": checkpoint})})
    cache = str(tmp_path / folder) if folder else ""
    return StartWorld(config=config, world=make_world(1, 1), process=0, compile_cache=cache, program_secret=secret)


def test_a_world_and_a_new_entry_have_the_bucket_compared(tmp_path: Path, copies: Copies, cache: ProgramCache) -> None:
    start = make_start(tmp_path)
    expected = (BUCKET, start.compile_cache, SECRET)

    cache.begin_world(start)
    assert copies.wait() == expected
    assert copies.is_idle()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ENTRY).write_bytes(b"program")
    assert copies.wait() == expected
    assert copies.is_idle()
    cache.begin_world(start)
    assert copies.wait() == expected
    assert copies.is_idle()


def test_a_failed_copy_is_repeated_and_reported_once(
    tmp_path: Path, copies: Copies, cache: ProgramCache, caplog: pytest.LogCaptureFixture
) -> None:
    copies.answers = ["no permission"] * 3
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ENTRY).write_bytes(b"program")

    with caplog.at_level(logging.WARNING):
        cache.begin_world(make_start(tmp_path))
        for _ in range(4):
            copies.wait()

    assert copies.is_idle()
    assert [record.message for record in caplog.records] == [
        "compiled programs are not kept in the bucket error=no permission"
    ]


def test_an_unreadable_folder_stops_no_later_copy(
    tmp_path: Path, copies: Copies, cache: ProgramCache, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").touch()

    with caplog.at_level(logging.WARNING):
        cache.begin_world(make_start(tmp_path))
        assert copies.is_idle()
        (tmp_path / "cache").unlink()
        cache.begin_world(make_start(tmp_path))
        copies.wait()

    assert "Not a directory" in caplog.text


@pytest.mark.parametrize(
    ("change", "variable"),
    [
        pytest.param({"uri": "/shared/run"}, "", id="a-folder"),
        pytest.param({"folder": ""}, "", id="no-cache"),
        pytest.param({"secret": ""}, "", id="no-secret"),
        pytest.param({}, "/elsewhere", id="a-cache-of-the-user"),
    ],
)
def test_nothing_is_copied(
    change: dict[str, str],
    variable: str,
    tmp_path: Path,
    copies: Copies,
    cache: ProgramCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "JAX_COMPILATION_CACHE_DIR", variable)

    cache.begin_world(make_start(tmp_path, **change))

    assert copies.is_idle()
