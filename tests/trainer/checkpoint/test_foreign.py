"""Checkpoint folders with foreign content: read without harm, reported, and never deleted."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from tests.support.trainer.shelf import OPEN, Shelf, at, step_path
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from trainingjob_agent.checkpoint_layout import hash_job
from trainingjob_agent.shared_files import (
    MAX_JSON_BYTES,
    UntrustedFileError,
    open_untrusted_below,
    parse_number,
    read_untrusted,
    read_untrusted_json,
)
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.initialize import _list_candidates
from trainingjob_trainer.checkpoint.manifest import add_hash, find_damage, hash_files, read_integrity
from trainingjob_trainer.checkpoint.older_layout import INTERRUPTED_NAME
from trainingjob_trainer.checkpoint.saved_steps import list_saved
from trainingjob_trainer.checkpoint.step_changes import quarantine_step
from trainingjob_trainer.checkpoint.step_folders import list_lineages
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

NAMES = [
    "²",
    "٣",
    "\uff11\uff12",
    "-1",
    "+1",
    " 1",
    "1 ",
    "01",
    "1_0",
    "0x1",
    "1e3",
    "9" * 30,
    "①",
    "1\n",
    ".1",
    "1.0",
    "",
    "é",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_number_as_this_project_writes_them_is_no_step(tmp_path: Path, name: str) -> None:
    (tmp_path / "lineage-0" / f"{name}").mkdir(parents=True, exist_ok=True)
    (tmp_path / f"lineage-{name}" / "5").mkdir(parents=True)

    assert parse_number(name) is None
    assert list_saved(open_store(tmp_path)) == []
    assert list_lineages(open_store(tmp_path)) == ["lineage-0"]
    (tmp_path / f"WORLD-{name}-{UID}".replace("\n", "")).touch()
    Fence(open_store(tmp_path), make_world(5, 1)).check()


@pytest.mark.parametrize("number", [0, 1, 9, 10, 123456789012345678])
def test_a_number_is_a_step(number: int) -> None:
    assert parse_number(str(number)) == number


def bind(path: Path) -> None:
    # The name of a socket must be short.
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def stretch(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "a link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file outside": lambda path: path.symlink_to("/etc/passwd"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe without a writer": os.mkfifo,
    "a socket": bind,
    "a folder": os.mkdir,
}
NOT_RECORDS: dict[str, Callable[[Path], object]] = {
    **NOT_FILES,
    "100,000 levels of lists": lambda path: fill(path, b"[" * 100_000 + b"]" * 100_000),
    "100,000 levels of objects": lambda path: fill(path, b'{"files":' * 100_000 + b"1" + b"}" * 100_000),
    "500 levels beside what is asked": lambda path: fill(path, b'{"x":' + b"[" * 500 + b"]" * 500 + b"}"),
    "too large": lambda path: stretch(path, MAX_JSON_BYTES + 1),
    "a list": lambda path: fill(path, b"[]"),
    "a text": lambda path: fill(path, b'"x"'),
    "nothing": lambda path: fill(path, b"null"),
    "not a number": lambda path: fill(path, b"NaN"),
    "a number of 10,000 digits": lambda path: fill(path, b'{"step": ' + b"9" * 10_000 + b"}"),
    "no text": lambda path: fill(path, b"\xff\xfe\x00"),
    "empty": lambda path: fill(path, b""),
}


@pytest.mark.parametrize("make", NOT_RECORDS.values(), ids=NOT_RECORDS)
def test_step_with_a_hostile_record_is_reported_quarantined_and_skipped(
    shelf: Shelf, make: Callable[[Path], object]
) -> None:
    shelf.save(10)
    path = shelf.save(20) / "integrity.json"
    path.unlink()
    make(path)

    assert shelf.find(OPEN) == 10
    assert shelf.damaged()[20].startswith("integrity.json")
    assert shelf.names() == ["10", "20 quarantined"]


@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
@pytest.mark.parametrize("name", ["array/0", "array", "not listed", "array/not listed"])
def test_step_with_a_hostile_file_is_reported_quarantined_and_skipped(
    shelf: Shelf, name: str, make: Callable[[Path], object]
) -> None:
    if make is os.mkdir:
        name = "array/0"  # elsewhere a folder may be
    shelf.save(10)
    path = shelf.save(20) / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)

    assert shelf.find(OPEN) == 10
    assert name.split("/", maxsplit=1)[0] in shelf.damaged()[20]
    assert shelf.names() == ["10", "20 quarantined"]


OUTSIDE = [
    "../../../../../../../../etc/passwd",
    "/etc/passwd",
    "array/../../../secret",
    "..",
    ".",
    "",
    "array//0",
    "./array/0",
    "array/0/",
    "array\x00/0",
    "\ud800",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_of_a_step_is_damage(shelf: Shelf, name: str) -> None:
    (shelf.root / "secret").write_text("secret")
    shelf.save(10)
    folder = shelf.save(20)
    found = read_integrity(at(folder))
    assert found is not None
    printed = found.model_dump(mode="json")
    printed["files"][name] = printed["files"]["metadata"]
    (folder / "integrity.json").write_text(json.dumps(add_hash(printed)))

    assert shelf.find(OPEN) == 10
    assert "is not the name of a file below the folder" in shelf.damaged()[20]


def test_file_is_read_up_to_its_recorded_size(tmp_path: Path) -> None:
    (tmp_path / "array").write_bytes(b"x" * 10)
    wanted = hash_files(at(tmp_path), ["array"])
    stretch(tmp_path / "array", 1 << 40)  # to read it would take an hour

    assert find_damage(at(tmp_path), wanted) == f"array has {1 << 40} bytes instead of 10"


def test_a_foreign_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")

    assert read_untrusted(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UntrustedFileError, match="file has more than 4 bytes"):
        read_untrusted(tmp_path / "file", 4)


def test_a_folder_that_is_a_link_is_not_followed_on_the_way_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0").write_text("secret")
    (tmp_path / "step" / "array").symlink_to(tmp_path / "outside")

    with pytest.raises(UntrustedFileError, match="leads through array, which is not a folder"):
        open_untrusted_below(tmp_path / "step", "array/0")
    with pytest.raises(FileNotFoundError):
        open_untrusted_below(tmp_path / "step", "other/0")


OWNERS: dict[str, Callable[[Path], object]] = {
    **{name: make for name, make in NOT_FILES.items() if name != "a folder"},
    "too large": lambda path: stretch(path, 1 << 40),
    "deep": lambda path: fill(path, b"[" * 2_000 + b"]" * 2_000 + b"\n"),
    "a list": lambda path: fill(path, b"[]\n"),
    "a number for a job": lambda path: fill(path, b'{"uid": "x", "job": 5}\n'),
    "a text for former owners": lambda path: fill(path, b'{"uid": "x", "job": "a/b", "former": "y"}\n'),
    "a number for a former owner": lambda path: fill(path, b'{"uid": "x", "job": "a/b", "former": [5]}\n'),
    "an escape sequence": lambda path: fill(path, b'{"uid": "x", "job": "\\u001b]52;c;\\u0007"}\n'),
    "no text": lambda path: fill(path, b"\xff\xfe\n"),
    "a folder": os.mkdir,
}


@pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS)
def test_hostile_owner_file_is_reported_and_nothing_is_claimed(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / owner.OWNER_FILE)
    for takeover in (False, True):
        config = make_config(make_spec(tmp_path, tmp_path, checkpoint__takeover=takeover))
        with pytest.raises(TrainingError, match=r"was not written by a TrainingJob\. If no job uses the folder"):
            owner.claim(open_store(tmp_path), config)
    assert not owner.is_owned_by_other(open_store(tmp_path), UID)


def test_a_link_in_the_place_of_a_probe_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("stays")
    (tmp_path / f".probe.{os.uname().nodename}.{os.getpid()}").symlink_to(precious)

    owner.check_writable(open_store(tmp_path))

    assert precious.read_text() == "stays"


LINKED = {"a link to a step": True, "a link to nothing": False}


@pytest.mark.parametrize("is_there", LINKED.values(), ids=LINKED)
def test_a_step_that_is_a_link_is_set_aside_and_what_it_leads_to_stays(shelf: Shelf, is_there: bool) -> None:
    shelf.save(10)
    other = shelf.save(20)
    other.rename(shelf.root / "elsewhere")
    other.symlink_to(shelf.root / "elsewhere" if is_there else "nothing")

    assert shelf.find(OPEN) == 10
    assert shelf.damaged() == {20: "it is not a folder"}
    assert (other.is_symlink(), shelf.names()) == (True, ["10", "20 quarantined"])
    assert shelf.find(OPEN) == 10
    assert (shelf.root / "elsewhere/metadata").exists()


def test_a_file_in_the_place_of_a_step_is_set_aside(shelf: Shelf) -> None:
    shelf.save(10)
    (shelf.folder / "20").write_text("notes")

    assert shelf.find(OPEN) == 10
    assert (shelf.folder / "20").read_text() == "notes"
    assert shelf.names() == ["10", "20 quarantined"]


def test_lineage_that_is_a_link_is_reported_and_nothing_is_deleted_there(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.folder.rename(shelf.root / "elsewhere")
    shelf.folder.symlink_to(shelf.root / "elsewhere")

    with pytest.raises(NotADirectoryError, match="lineage-0 must be a folder itself, not a link"):
        shelf.find(OPEN)
    assert list((shelf.root / "elsewhere").glob("10.*/integrity.json"))


def copy_without(shelf: Shelf, step: int, names: tuple[str, ...] = ("integrity.json",)) -> Path:
    folder = shelf.folder / str(step)
    shutil.copytree(step_path(shelf.root, 10), folder)
    for name in names:
        (folder / name).unlink()
    return folder


COPIES: dict[str, tuple[Callable[[Shelf], Path], str]] = {
    "without its record": (lambda shelf: copy_without(shelf, 20), "integrity.json is missing"),
    "of which only the record is there": (
        lambda shelf: copy_without(shelf, 20, ("array/0", "metadata")),
        "integrity.json is that of step 10",
    ),
    "with the record of another step": (lambda shelf: copy_without(shelf, 20, ()), "integrity.json is that of step 10"),
    "without anything": (
        lambda shelf: copy_without(shelf, 20, ("integrity.json", "array/0", "metadata")),
        "is missing",
    ),
    "of another job": (lambda shelf: shelf.save(20, 7, uid="other"), "another job has saved it, and training resumes"),
}


@pytest.mark.parametrize(("make", "words"), COPIES.values(), ids=COPIES)
def test_manually_copied_step_is_reported_and_quarantined(
    shelf: Shelf, make: Callable[[Shelf], Path], words: str
) -> None:
    shelf.save(10)
    folder = make(shelf)
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))

    assert shelf.find(OPEN) == 10
    assert words in shelf.damaged()[20]
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    assert shelf.names() == ["10", "20 quarantined"]


@pytest.mark.parametrize("name", [f"10.g2.s1.{hash_job(UID)}", f"10.g1.s1.{hash_job('other')}", "11"])
def test_a_step_under_the_name_of_another_writer_is_damaged(shelf: Shelf, name: str) -> None:
    shelf.save(10).rename(shelf.folder / name)
    shelf.save(8)

    assert shelf.find(OPEN) == 8
    assert list(shelf.damaged().values()) == ["integrity.json is that of step 10 of lineage 0 and generation 1"]


def test_a_copy_without_its_record_is_no_start_from_scratch(shelf: Shelf) -> None:
    shelf.save(20, commit=False, is_older=True)

    with pytest.raises(TrainingError, match=r"is intact.*\(step 20: integrity.json is missing\)"):
        shelf.find()


LEFT = [
    "4.saving-2",
    "4.saving-2.void",
    "4.saving-2.orbax-checkpoint-tmp",
    "4.orbax-checkpoint-tmp",
    "4.orbax-checkpoint-tmp-17",
    "4.copying-2",
    "4.copying-2.void",
    "4.void",
    "4.damaged-2.void",
]
OTHERS = [
    "notes.saving",
    "4.saving",
    "4.saving-2.bak",
    "my.copying-1",
    "4.copying-of-10",
    "x.void",
    "void",
    "4.damaged-2",
]


@pytest.mark.parametrize("name", [*LEFT, *OTHERS])
def test_only_what_a_killed_save_copy_or_deletion_leaves_is_deleted(shelf: Shelf, name: str) -> None:
    shelf.save(10)
    (shelf.folder / name / "inside").mkdir(parents=True)

    assert shelf.find(OPEN) == 10
    assert (name in shelf.names()) == (name in OTHERS)
    assert (INTERRUPTED_NAME.fullmatch(name) is None) == (name in OTHERS)


def test_step_quarantined_again_keeps_the_first_reason(shelf: Shelf) -> None:
    folder = at(shelf.save(20))
    for reason in ("a flipped bit", "another"):
        quarantine_step(folder, 2, reason)

    assert json.loads(folder.store.read(f"{folder.name}.quarantined", 1000)) == {
        "generation": 2,
        "reason": "a flipped bit",
        "job_uid": "",
    }


def test_a_folder_to_begin_from_is_read_with_the_same_care(shelf: Shelf) -> None:
    shelf.save(10)
    for step, make in enumerate(NOT_RECORDS.values(), 20):
        path = shelf.save(step) / "integrity.json"
        path.unlink()
        make(path)
    for name in NAMES[:3]:
        (shelf.folder / name).mkdir()
    before = shelf.names()

    assert [one.name for one in _list_candidates(InitializeFrom(uri=str(shelf.root)))] == [
        at(step_path(shelf.root, 10)).name
    ]
    assert shelf.names() == before


def test_json_survives_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"a": [1]}')

    assert read_untrusted_json(tmp_path / "file") == {"a": [1]}
