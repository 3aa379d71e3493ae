"""Requests of an agent to the store of its job: stacks to write, and a checkpoint to damage."""

import errno
import os
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.shelf import at
from trainingjob_agent import store_requests
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE, QUARANTINE_SUFFIX
from trainingjob_agent.store_requests import corrupt_newest_checkpoint, write_text
from trainingjob_trainer.checkpoint.manifest import FileHash, find_damage, hash_files, list_files
from trainingjob_trainer.store.agent_requests import corrupt_newest, main
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore

FILES = ("state", MANIFEST_FILE)
OLDER = ("lineage-0/30.g1.s1.01234567", "lineage-1/9", "lineage-1/20.g2.s1.01234567")
"""Steps, one of them from an older trainer, and one of an earlier generation than the newest."""
NEWEST = "lineage-1/20.g10.s1.01234567"
QUARANTINED = "lineage-1/40.g2.s1.01234567"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder of saved steps; the newest is `NEWEST`. Digits of other alphabets name none."""
    others = (QUARANTINED, "lineage-1/20.damaged-3", "lineage-1/\u00b2", "lineage-\u0663/7")
    for name in (*OLDER, NEWEST, *others):
        folder = tmp_path / name / "state"
        folder.mkdir(parents=True)
        (folder / "large").write_bytes(bytes(1000))
        (folder / "small").write_bytes(b"abc")
        (folder.parent / MANIFEST_FILE).write_text("{}")
    (tmp_path / "lineage-1/25.g2.s1.01234567").mkdir()  # was never finished
    (tmp_path / (QUARANTINED + QUARANTINE_SUFFIX)).touch()
    return tmp_path


def prints(saved: Path) -> dict[str, dict[str, FileHash]]:
    folders = [path.parent for path in saved.glob(f"lineage-*/*/{MANIFEST_FILE}")]
    return {str(folder.relative_to(saved)): hash_files(at(folder), list_files(at(folder))) for folder in folders}


def test_the_newest_saved_step_is_damaged_and_no_other(saved: Path) -> None:
    before = prints(saved)

    assert corrupt_newest(open_store(saved)) == ""

    damages = {name: find_damage(at(saved / name), wanted) for name, wanted in before.items()}
    assert {name: damage for name, damage in damages.items() if damage} == {
        NEWEST: "state/large has changed since it was saved"
    }


def test_the_only_saved_step_is_not_damaged(saved: Path) -> None:
    for name in OLDER:
        shutil.rmtree(saved / name)
    before = prints(saved)

    assert corrupt_newest(open_store(saved)) == "1 saved steps: at least 2 are needed, so that an intact one remains"
    assert prints(saved) == before


def test_a_saved_step_that_goes_meanwhile_is_not_damaged(saved: Path) -> None:
    shutil.rmtree(saved / NEWEST / "state")

    assert corrupt_newest(open_store(saved)) == f"the saved step has no files in {saved}/{NEWEST}"


def test_an_unwritable_store_is_reported(saved: Path) -> None:
    assert (saved / NEWEST).is_dir()
    with patch.object(PosixStore, "write", side_effect=OSError(errno.EROFS, "Read-only file system")):
        assert main(["corrupt", str(saved)]) == "Read-only file system"


def test_stacks_are_not_written_through_a_link_or_into_a_pipe(tmp_path: Path) -> None:
    precious, linked, pipe = tmp_path / "precious", tmp_path / "stacks/1-0-0.txt", tmp_path / "stacks/1-0-1.txt"
    precious.write_text("stays")
    linked.parent.mkdir()
    linked.symlink_to(precious)
    os.mkfifo(pipe)

    problems = [write_text(str(tmp_path), f"stacks/{path.name}", "Thread 0x1") for path in (linked, pipe)]

    assert problems == ["", ""]
    assert precious.read_text() == "stays"
    assert [path.is_file() and path.read_text() for path in (linked, pipe)] == ["Thread 0x1"] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_agent_writes_and_damages_objects_of_a_bucket(scheme: str, object_servers: ObjectServers) -> None:
    with object_servers.environment(scheme):
        root = new_root(scheme)
        store = open_store(root)
        for name in ("lineage-0/20/state", "lineage-0/20/integrity.json", *(f"lineage-0/30/{one}" for one in FILES)):
            store.write(name, (b"0123",))

        answers = [write_text(root, "stacks/1-0-0.txt", "Thread 0x1"), corrupt_newest_checkpoint(root)]

        assert answers == ["", ""]
        assert store.read("stacks/1-0-0.txt", 100) == b"Thread 0x1"
        assert [store.read(f"lineage-0/{step}/state", 100) for step in (20, 30)] == [b"0123", b"0133"]


def test_the_reason_of_a_failed_request_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_text("/proc/no", "stacks/1-0-0.txt", "") == "No such file or directory"

    monkeypatch.setattr(store_requests, "PROGRAM", (sys.executable, "-c", "import sys; sys.exit('no client')"))
    assert write_text("/tmp", "x", "") == "no client"  # it is not written
    monkeypatch.setattr(store_requests, "PROGRAM", ("/no/such/program",))
    assert write_text("/tmp", "x", "") == "no process can be started: No such file or directory"
