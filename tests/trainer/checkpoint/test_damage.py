"""Damaged steps: they are reported and skipped, and never hidden."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.shelf import HISTORY, OPEN, Shelf, Snapshots, at, flip, rewrite, step_path
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.manifest import ReadRetry, read_integrity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store import posix

DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(folder / "array/0"), "array/0 has changed since it was saved"),
    "a cut file": (lambda folder: (folder / "array/0").write_bytes(b"x"), "array/0 has 1 bytes instead of 100"),
    "a missing file": (lambda folder: (folder / "metadata").unlink(), "metadata is missing"),
    "a record that says another step": (
        lambda folder: rewrite(folder / "integrity.json", '"step": 20', '"step": 60'),
        "integrity.json has changed since it was saved",
    ),
    "a step under another's number": (
        lambda folder: shutil.copytree(step_path(folder.parents[1], 10), folder, dirs_exist_ok=True),
        "integrity.json is that of step 10 of lineage 0",
    ),
    "a broken record": (lambda folder: (folder / "integrity.json").write_text("{"), "integrity.json cannot be read"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_step_is_reported_set_aside_and_passed_over(
    shelf: Shelf, damage: Callable[[Path], object], words: str
) -> None:
    shelf.save(10)
    damage(shelf.save(20))

    assert shelf.find() == 10
    assert words in shelf.damaged()[20]
    assert shelf.names() == ["10", "20 quarantined"]


@pytest.mark.thorough
def test_flipped_bit_of_a_record_is_detected(shelf: Shelf) -> None:
    folder = shelf.save(20)
    path = folder / "integrity.json"
    whole, printed = path.read_bytes(), read_integrity(at(folder))

    for place in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with suppress(ValueError):
            assert read_integrity(at(folder)) == printed


LOSSES: dict[str, tuple[Callable[[Path], object], str, list[str]]] = {
    "its record is gone": (
        lambda folder: (folder / "integrity.json").unlink(),
        "integrity.json is missing",
        ["10", "20 quarantined"],
    ),
    "its folder is gone": (shutil.rmtree, "it is not there any more", ["10"]),
}


@pytest.mark.parametrize(("lose", "words", "left"), LOSSES.values(), ids=LOSSES.keys())
def test_a_step_that_was_announced_and_is_gone_is_reported_too(
    shelf: Shelf, lose: Callable[[Path], object], words: str, left: list[str]
) -> None:
    shelf.save(10)
    lose(shelf.save(20))

    found = together(2, lambda peers: shelf.find(OPEN, committed=20, peers=peers))

    assert found == [10, 10]
    assert shelf.damaged() == {20: words}
    assert len(shelf.log.read_text().splitlines()) == 2
    assert shelf.names() == left


def test_committed_step_is_not_reported_as_missing(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(20, commit=False)

    assert shelf.find(OPEN, committed=10) == 10
    assert shelf.damaged() == {}


def test_damage_costs_no_more_of_a_generation_that_was_never_recorded(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(16, 2)
    flip(shelf.save(20, 2) / "array/0")

    assert shelf.find((Span(generation=1, first=1, last=20), Span(generation=3, first=21))) == 16


def test_training_never_starts_from_scratch_because_of_damage(shelf: Shelf) -> None:
    flip(shelf.save(10) / "array/0")

    with pytest.raises(TrainingError, match=r"no saved step .* is intact.* \(step 10: array/0 has changed") as caught:
        shelf.find()

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, True)


def test_training_never_starts_from_scratch_when_its_checkpoints_are_gone(shelf: Shelf) -> None:
    with pytest.raises(TrainingError, match="though step 20 was restored before"):
        shelf.find(HISTORY)


def test_training_never_starts_from_scratch_if_saved_steps_are_missing(
    shelf: Shelf,
) -> None:
    words = r"though step 20 was saved before\. Bring the folder back from a copy, or start a new job from scratch"
    with pytest.raises(TrainingError, match=words) as caught:
        shelf.find(OPEN, committed=20)

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


ENDLESS = 10**9


class Refusing:
    """Storage that fails the reads of some files, a number of times each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> None:
        self.left: dict[Path, int] = {}
        self.slept = 0
        self._number = number
        below = posix.open_untrusted_below

        def open_below(folder: Path, name: str) -> FileIO:
            self._refuse(folder / name)
            return below(folder, name)

        def sleep(seconds: float) -> None:
            self.slept += 1

        monkeypatch.setattr(posix, "open_untrusted_below", open_below)
        monkeypatch.setattr("trainingjob_trainer.checkpoint.manifest.time.sleep", sleep)

    def _refuse(self, path: Path) -> None:
        if self.left.get(path, 0):
            self.left[path] -= 1
            raise OSError(self._number, os.strerror(self._number))

    def refuse(self, path: Path, times: int = ENDLESS) -> None:
        self.left[path] = times


NAMES = pytest.mark.parametrize("name", ["array/0", "integrity.json"])


@NAMES
def test_transient_read_errors_are_retried(shelf: Shelf, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.save(10)
    storage = Refusing(monkeypatch)
    storage.refuse(shelf.save(20) / name, times=3)

    assert shelf.find() == 20
    assert (storage.slept, shelf.damaged(), shelf.names()) == (3, {}, ["10", "20"])


@NAMES
def test_a_step_that_storage_does_not_give_is_passed_over_where_an_older_one_is_whole(
    shelf: Shelf, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    shelf.save(10)
    Refusing(monkeypatch).refuse(shelf.save(20) / name)

    assert together(2, lambda peers: shelf.find(OPEN, peers=peers, committed=20)) == [10, 10]
    assert shelf.damaged() == {20: "it cannot be read: Input/output error"}
    assert len(shelf.log.read_text().splitlines()) == 2
    assert shelf.names() == ["10", "20 quarantined"]


@NAMES
@pytest.mark.parametrize(("number", "is_fatal"), [(errno.EIO, False), (errno.ESTALE, False), (errno.EACCES, True)])
def test_steps_are_not_changed_if_none_is_readable(
    shelf: Shelf, name: str, number: int, is_fatal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    storage = Refusing(monkeypatch, number)
    for step in (10, 20):
        storage.refuse(shelf.save(step) / name)

    with pytest.raises(TrainingError, match=f"reading .* failed: {os.strerror(number)}") as caught:
        shelf.find(OPEN, committed=20)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, is_fatal)
    assert (shelf.damaged(), shelf.names()) == ({}, ["10", "20"])


def test_unreadable_older_step_is_unchanged(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    Refusing(monkeypatch).refuse(shelf.save(10) / "integrity.json")
    shelf.save(20)

    assert shelf.find() == 20
    assert (shelf.damaged(), shelf.names()) == ({}, ["10", "20"])


def test_training_resumes_from_a_snapshot_if_a_later_step_is_unreadable(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    Refusing(monkeypatch).refuse(shelf.save(20) / "array/0")

    assert shelf.find(OPEN, memory=Snapshots((1, 15))) == (1, 15)
    assert shelf.damaged() == {20: "it cannot be read: Input/output error"}


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_trainer.checkpoint.restore_search.ReadRetry", lambda: ReadRetry(0))


def test_job_with_damaged_checkpoints_resumes_from_a_snapshot(shelf: Shelf) -> None:
    flip(shelf.save(20) / "array/0")

    assert shelf.find(OPEN, memory=Snapshots((1, 15))) == (1, 15)
    assert list(shelf.damaged()) == [20]


@pytest.mark.parametrize("name", ["array/0", "metadata", "integrity.json"])
def test_all_processes_agree_on_damage_that_one_finds(shelf: Shelf, name: str) -> None:
    shelf.save(10)
    (shelf.save(20) / name).write_bytes(b"\x00")

    found = together(2, lambda peers: shelf.find(peers=peers))

    assert found == [10, 10]
    assert list(shelf.damaged()) == [20]
    assert len(shelf.log.read_text().splitlines()) == 2  # each tells it: who restored is not asked twice
