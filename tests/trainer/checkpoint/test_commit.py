"""One save by several processes: all receive the failure of one, none waits, and the next save succeeds."""

import errno
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from tests.support.trainer.meeting import together
from tests.support.trainer.shelf import at, list_steps, read_record, step_path
from tests.support.trainer.tiny import UID, make_world
from trainingjob_agent.checkpoint_layout import StepName, Writer, hash_job, parse_step_name
from trainingjob_trainer.checkpoint import commit
from trainingjob_trainer.checkpoint.commit import COMMIT_SECONDS, Committer
from trainingjob_trainer.checkpoint.error_exchange import MAX_PROBLEM, ErrorExchange, SaveFailedError, describe_error
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import Integrity, find_damage
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

STATE: Any = None
FULL = OSError(errno.ENOSPC, "full")


class Parts:
    """What Orbax does with a copied state, with files of bytes. `failing` are the stages that fail, once each."""

    def __init__(self, process: int, failing: dict[str, Exception], folder: Path) -> None:
        self.process = process
        self.failing = failing
        self.folder = folder
        self.problem = describe_error(failing.pop("copy")) if "copy" in failing else ""
        self.is_given_up = False

    def write(self) -> None:
        (self.folder / f"array-{self.process}").write_bytes(b"numbers")
        if error := self.failing.pop("write", None):
            raise error

    def finalize(self) -> None:
        if error := self.failing.pop("finalize", None):
            raise error

    def give_up(self) -> None:
        self.is_given_up = True


class Orbax:
    """Orbax as one process has it."""

    def __init__(self, process: int, failing: dict[str, Exception]) -> None:
        self.process = process
        self.failing = failing
        self.copies: list[Parts] = []

    def copy(self, folder: str, state: object) -> Parts:
        self.copies.append(Parts(self.process, self.failing, Path(folder)))
        return self.copies[-1]


def record(step: int) -> Integrity:
    return Integrity(job_uid=UID, generation=1, step=step, data="d", state="s", files={})


def save(committer: Committer, number: int) -> str:
    try:
        committer.finish(committer.begin(0, number, STATE), record(number))
    except SaveFailedError as error:
        return str(error)
    return "saved"


def start(peers: ProcessGroup, failing: dict[str, Exception], root: Path, generation: int = 1) -> Committer:
    store = open_store(root)
    committer = Committer(store, ProcessGroup(0, 1), f"host {peers.process}", Fence(store, make_world(generation, 3)))
    committer._peers = peers
    committer._votes = ErrorExchange(peers, f"host {peers.process}", "save", COMMIT_SECONDS)
    orbax: Any = Orbax(peers.process, failing)
    committer.orbax = orbax
    return committer


FAILURES: dict[str, tuple[int, str, Exception, str]] = {
    "the first cannot copy": (0, "copy", MemoryError(), "host 0: MemoryError"),
    "another cannot copy": (1, "copy", ValueError("OUT_OF_RANGE:\n  no room"), "host 1: OUT_OF_RANGE: no room"),
    "the first cannot write": (0, "write", FULL, "host 0: No space left on device"),
    "another cannot write": (2, "write", FULL, "host 2: No space left on device"),
    "what was written is no whole": (0, "finalize", OSError(errno.EIO, ""), "host 0: Input/output error"),
}


@pytest.mark.parametrize(("process", "stage", "error", "want"), FAILURES.values(), ids=FAILURES.keys())
def test_failure_on_one_host_fails_the_save_on_all(
    process: int, stage: str, error: Exception, want: str, tmp_path: Path
) -> None:
    def act(peers: ProcessGroup) -> tuple[str, str]:
        committer = start(peers, {stage: error} if peers.process == process else {}, tmp_path)
        return save(committer, 2), save(committer, 4)

    assert together(3, act) == [(want, "saved")] * 3
    assert list_steps(tmp_path / "lineage-0") == ["4"]


@pytest.mark.parametrize(("name", "process"), [("list_files", 0), ("hash_files", 2), ("write_integrity", 0)])
def test_failed_verification_fails_the_save_on_all(
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

    def act(peers: ProcessGroup) -> tuple[str, str]:
        committer = start(peers, {}, tmp_path)
        return save(committer, 2), save(committer, 2)

    assert together(3, act) == [(f"host {process}: No space left on device", "saved")] * 3
    folder = step_path(tmp_path, 2)
    saved = read_record(folder)
    assert sorted(saved.files) == ["array-0", "array-1", "array-2", "writer.json"]
    assert find_damage(at(folder), saved.files) == ""
    assert parse_step_name(folder.name) == StepName(2, Writer(hash_job(UID), generation=1, save=2))


def test_a_folder_that_takes_nothing_is_found_before_anything_is_written_and_the_copy_is_given_up(
    tmp_path: Path,
) -> None:
    (tmp_path / "lineage-0").touch()

    def act(peers: ProcessGroup) -> tuple[str, bool]:
        committer = start(peers, {"write": AssertionError()}, tmp_path)
        orbax: Any = committer.orbax
        return save(committer, 2), orbax.copies[0].is_given_up

    assert together(2, act) == [("host 0: Not a directory", True)] * 2


def test_processes_do_not_synchronize_while_training_is_blocked(tmp_path: Path) -> None:
    class Lonely(ProcessGroup):
        def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
            raise AssertionError(name)

        wait = exchange  # type: ignore[assignment]

    assert start(Lonely(1, 3), {}, tmp_path).begin(0, 2, STATE).write.problem == ""


def test_no_save_writes_where_another_has_written(tmp_path: Path) -> None:
    """Another writer of the same name would need two worlds of one generation. Even then no file is mixed."""
    name = StepName(2, Writer(hash_job(UID), generation=1, save=1))
    (tmp_path / "lineage-0" / str(name)).mkdir(parents=True)
    for path in ("writer.json", "half"):
        (tmp_path / "lineage-0" / str(name) / path).touch()

    def act(peers: ProcessGroup) -> tuple[str, str]:
        committer = start(peers, {}, tmp_path)
        return save(committer, 2), save(committer, 2)

    assert together(2, act) == [("host 0: File exists", "saved")] * 2
    assert sorted(read_record(step_path(tmp_path, 2)).files) == ["array-0", "array-1", "writer.json"]


def test_worlds_that_save_the_same_step_share_no_file(tmp_path: Path) -> None:
    for generation in (1, 2):
        assert together(1, lambda peers: save(start(peers, {}, tmp_path, generation), 2)) == ["saved"]  # noqa: B023

    assert list_steps(tmp_path / "lineage-0") == ["2", "2"]


def test_a_step_that_is_saved_is_not_saved_again_and_stays(tmp_path: Path) -> None:
    assert together(1, lambda peers: save(start(peers, {}, tmp_path), 2)) == ["saved"]
    assert together(1, lambda peers: save(start(peers, {}, tmp_path), 2)) == ["host 0: step 2 is there already"]
    assert list_steps(tmp_path / "lineage-0") == ["2"]


def test_an_attempt_that_was_committed_although_its_save_failed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails after it has written the manifest, and refuses the deletion."""
    with monkeypatch.context() as outage:
        real = commit.write_integrity

        def write_and_fail(folder: StepFolder, manifest: Integrity) -> None:
            real(folder, manifest)
            outage.setattr(commit, "delete_step", refuse)
            raise OSError(errno.EIO, "")

        def refuse(folder: StepFolder, fence: Fence) -> None:
            raise OSError(errno.EIO, "")

        outage.setattr(commit, "write_integrity", write_and_fail)
        committer = start(ProcessGroup(0, 1), {}, tmp_path)
        assert save(committer, 2) == "host 0: Input/output error"
        assert list_steps(tmp_path / "lineage-0") == ["2"]

        assert save(committer, 2) == "host 0: Input/output error"
        assert list_steps(tmp_path / "lineage-0") == ["2"]

    assert save(committer, 2) == "saved"
    assert list_steps(tmp_path / "lineage-0") == ["2"]
    assert parse_step_name(step_path(tmp_path, 2).name) == StepName(2, Writer(hash_job(UID), generation=1, save=3))


def test_a_host_that_is_gone_is_no_failure_of_the_store(tmp_path: Path) -> None:
    class Gone(ProcessGroup):
        def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
            if name.endswith("/0"):
                return (text,)
            raise JaxRuntimeError("UNAVAILABLE: connection refused")

    with pytest.raises(JaxRuntimeError, match="UNAVAILABLE"):
        save(start(Gone(0, 1), {}, tmp_path), 2)


def test_message_contains_the_system_error_and_is_bounded() -> None:
    assert describe_error(OSError(errno.EROFS, "")) == "Read-only file system"
    assert describe_error(ValueError()) == "ValueError"
    assert len(describe_error(ValueError("x" * 5000))) == MAX_PROBLEM
