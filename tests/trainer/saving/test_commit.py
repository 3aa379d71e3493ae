"""One save by several processes: what fails on one of them all know, nobody waits, and the next one succeeds."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from tests.trainer.meeting import renumber, together
from tests.trainer.tiny import UID, make_world
from trainingjob_trainer.saving import commit
from trainingjob_trainer.saving.commit import COMMIT_SECONDS, Committer, name_alone, name_processes
from trainingjob_trainer.saving.fence import Fence
from trainingjob_trainer.saving.integrity import Integrity, find_damage, read_integrity
from trainingjob_trainer.saving.votes import MAX_PROBLEM, SaveFailedError, Votes, describe
from trainingjob_trainer.world import Peers

STATE: Any = None
FULL = OSError(errno.ENOSPC, "full")


class Orbax:
    """What Orbax does with a folder, with files of bytes: all write, all meet, the first one moves, all meet."""

    def __init__(self, peers: Peers, meet: Callable[..., None], failing: dict[str, Exception]) -> None:
        self.peers = peers
        self.meet = meet
        self.failing = failing
        self.folder = Path()

    def save(self, folder: Path, args: object) -> None:
        self.fail("begin")
        self.folder = folder

    def wait_until_finished(self) -> None:
        unfinished = self.folder.with_name(f"{self.folder.name}.orbax-checkpoint-tmp")
        unfinished.mkdir(exist_ok=True)
        (unfinished / f"array-{self.peers.process}").write_bytes(b"numbers")
        self.fail("write")
        self.meet(key="async_write_complete", timeout_ms=1)
        if self.peers.process == 0:
            self.fail("move")
            unfinished.rename(self.folder)
        self.meet(key="async_commit_complete", timeout_ms=1)

    def fail(self, stage: str) -> None:
        if error := self.failing.pop(stage, None):
            raise error


def record(step: int) -> Integrity:
    return Integrity(job_uid=UID, generation=1, step=step, data="d", state="s", files={})


def save(committer: Committer, folder: Path) -> str:
    try:
        committer.begin(folder, STATE)
        committer.finish(folder, record(int(folder.name)))
    except SaveFailedError as error:
        return str(error)
    return "saved"


def start(peers: Peers, failing: dict[str, Exception], root: Path) -> Committer:
    committer = Committer(Peers(0, 1), f"host {peers.process}", Fence(root, make_world(1, 3)))
    committer._peers = peers
    committer._votes = Votes(peers, f"host {peers.process}", "save", COMMIT_SECONDS)
    orbax: Any = Orbax(peers, committer._meet, failing)
    committer.orbax = orbax
    return committer


FAILURES: dict[str, tuple[int, str, Exception, str]] = {
    "the first cannot begin": (0, "begin", FULL, "host 0: No space left on device"),
    "another cannot begin": (1, "begin", ValueError("OUT_OF_RANGE:\n  no room"), "host 1: OUT_OF_RANGE: no room"),
    "the first cannot write": (0, "write", FULL, "host 0: No space left on device"),
    "another cannot write": (2, "write", FULL, "host 2: No space left on device"),
    "it cannot be moved into place": (0, "move", OSError(errno.EIO, ""), "host 0: Input/output error"),
}


@pytest.mark.parametrize(("process", "stage", "error", "want"), FAILURES.values(), ids=FAILURES.keys())
def test_what_fails_on_one_host_fails_the_save_on_all(
    process: int, stage: str, error: Exception, want: str, tmp_path: Path
) -> None:
    def act(peers: Peers) -> tuple[str, str]:
        committer = start(peers, {stage: error} if peers.process == process else {}, tmp_path)
        return save(committer, tmp_path / "lineage-0/2"), save(committer, tmp_path / "lineage-0/4")

    assert together(3, act) == [(want, "saved")] * 3
    assert [path.name for path in (tmp_path / "lineage-0").iterdir()] == ["4"]


@pytest.mark.parametrize(("name", "process"), [("list_files", 0), ("hash_files", 2), ("write_integrity", 0)])
def test_what_fails_in_the_proof_fails_the_save_on_all(
    name: str, process: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = getattr(commit, name), [1]

    def fail(*arguments: Any) -> Any:
        is_it = name != "hash_files" or f"array-{process}" in arguments[1]
        if is_it and left:
            left.pop()
            raise FULL
        return real(*arguments)

    monkeypatch.setattr(commit, name, fail)

    def act(peers: Peers) -> tuple[str, str]:
        committer = start(peers, {}, tmp_path)
        return save(committer, tmp_path / "2"), save(committer, tmp_path / "2")

    assert together(3, act) == [(f"host {process}: No space left on device", "saved")] * 3
    saved = read_integrity(tmp_path / "2")
    assert saved
    assert sorted(saved.files) == ["array-0", "array-1", "array-2"]
    assert find_damage(tmp_path / "2", saved.files) == ""


def test_a_folder_that_takes_nothing_is_found_before_anything_is_copied(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def act(peers: Peers) -> str:
        return save(start(peers, {"begin": AssertionError()}, tmp_path), tmp_path / "file/2")

    assert together(2, act) == ["host 0: File exists"] * 2


def test_what_an_earlier_save_left_makes_way(tmp_path: Path) -> None:
    for name in ("2", "2.saving-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()

    assert together(2, lambda peers: save(start(peers, {}, tmp_path), tmp_path / "2")) == ["saved"] * 2
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["array-0", "array-1", "integrity.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_step_that_is_saved_is_not_saved_again_and_stays(tmp_path: Path) -> None:
    assert together(1, lambda peers: save(start(peers, {}, tmp_path), tmp_path / "2")) == ["saved"]
    assert together(1, lambda peers: save(start(peers, {}, tmp_path), tmp_path / "2")) == [
        "host 0: step 2 is there already"
    ]
    assert read_integrity(tmp_path / "2")


def test_a_host_that_is_gone_is_no_failure_of_the_store(tmp_path: Path) -> None:
    class Gone(Peers):
        def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
            if name.endswith("/0"):
                return (text,)
            raise JaxRuntimeError("UNAVAILABLE: connection refused")

    with pytest.raises(JaxRuntimeError, match="UNAVAILABLE"):
        save(start(Gone(0, 1), {}, tmp_path), tmp_path / "2")


def test_orbax_hears_of_processes_by_the_numbers_that_jax_gives_them() -> None:
    peers = renumber(Peers(1, 3), (2, 0, 1))

    everyone, alone = name_processes(peers, "all"), name_alone(peers)

    assert (everyone.primary_host, everyone.active_processes) == (2, {0, 1, 2})
    assert (alone.primary_host, alone.active_processes) == (0, {0})


def test_words_are_the_operating_systems_own_and_not_endless() -> None:
    assert describe(OSError(errno.EROFS, "")) == "Read-only file system"
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 5000))) == MAX_PROBLEM
