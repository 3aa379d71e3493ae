"""Ownership of a checkpoint folder."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import UID, make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.checkpoint import delete_folder
from trainingjob_trainer.checkpoint.owner import MAX_BYTES, MAX_FORMER, OWNER_FILE, check_writable, claim, list_owners
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store


def claim_as(root: Path, uid: str, **changes: Any) -> None:
    claim(open_store(root), make_config(make_spec(root, root, **changes), uid=uid))


def owner(root: Path) -> str:
    uid: str = json.loads((root / "OWNER").read_text())["uid"]
    return uid


def test_the_first_job_owns_the_folder_and_may_come_back(tmp_path: Path) -> None:
    claim_as(tmp_path, UID)
    claim_as(tmp_path, UID)

    assert owner(tmp_path) == UID


def test_another_job_is_rejected(tmp_path: Path) -> None:
    claim_as(tmp_path, UID)

    with pytest.raises(TrainingError, match=rf"holds the checkpoints of tests/tiny \(UID {UID}\)") as caught:
        claim_as(tmp_path, "other")

    assert (caught.value.reason, caught.value.path, caught.value.fatal) == (
        FailureReason.CONFIG,
        "spec.checkpoint.uri",
        True,
    )
    assert owner(tmp_path) == UID


def test_first_job_is_rejected_after_a_takeover(tmp_path: Path) -> None:
    claim_as(tmp_path, UID)
    claim_as(tmp_path, "other", checkpoint__takeover=True)

    assert owner(tmp_path) == "other"
    with pytest.raises(TrainingError, match="UID other"):
        claim_as(tmp_path, UID)


def test_a_job_that_has_lost_its_folder_does_not_take_it_over_again(tmp_path: Path) -> None:
    for uid in ("first", "second", "third"):
        claim_as(tmp_path, uid, checkpoint__takeover=True)
    claim_as(tmp_path, "third", checkpoint__takeover=True)

    for uid in ("first", "second"):
        with pytest.raises(TrainingError, match=r"UID third\)\. .* Create another job with spec\.checkpoint") as caught:
            claim_as(tmp_path, uid, checkpoint__takeover=True)
        assert (caught.value.reason, caught.value.path, caught.value.fatal) == (
            FailureReason.CONFIG,
            "spec.checkpoint.uri",
            True,
        )
    assert list_owners(open_store(tmp_path)) == ("third", "second", "first")


def test_a_job_that_has_trained_takes_over_nothing(tmp_path: Path) -> None:
    """An older trainer did not write the former owners."""
    (tmp_path / "OWNER").write_text('{"uid": "other", "job": "tests/other"}\n')
    config = make_config(make_spec(tmp_path, tmp_path, checkpoint__takeover=True))

    with pytest.raises(TrainingError, match=r"of tests/other \(UID other\)\. This job has lost the folder"):
        claim(open_store(tmp_path), config, has_trained=True)
    assert owner(tmp_path) == "other"

    claim(open_store(tmp_path), config)
    assert list_owners(open_store(tmp_path)) == (UID, "other")


def test_the_newest_former_owners_are_kept(tmp_path: Path) -> None:
    uids = [f"{number:036}" for number in range(MAX_FORMER + 3)]
    for uid in uids:
        claim_as(tmp_path, uid, checkpoint__takeover=True)

    assert list_owners(open_store(tmp_path)) == tuple(reversed(uids))[: MAX_FORMER + 1]
    assert (tmp_path / "OWNER").stat().st_size < MAX_BYTES - 400


def test_an_owner_that_died_while_signing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_trainer.checkpoint.owner.UNFINISHED_SECONDS", 0)
    (tmp_path / "OWNER").touch()

    claim_as(tmp_path, UID)

    assert owner(tmp_path) == UID


def test_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "OWNER").write_text("Alice\n")

    with pytest.raises(TrainingError, match="not written by a TrainingJob"):
        claim_as(tmp_path, UID)


def test_writable_folder_is_created_and_left_clean(tmp_path: Path) -> None:
    check_writable(open_store(tmp_path / "new/folder"))

    assert list((tmp_path / "new/folder").iterdir()) == []


def test_folder_that_cannot_be_created_is_a_fatal_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(TrainingError, match="Not a directory") as caught:
        check_writable(open_store(tmp_path / "file/checkpoints"))

    assert (caught.value.reason, caught.value.path, caught.value.fatal) == (
        FailureReason.STORAGE,
        "spec.checkpoint.uri",
        True,
    )


def test_a_folder_is_deleted_for_its_owner_alone() -> None:
    store = ObjectStore("mem://runs/run")
    for name in (OWNER_FILE, "model.json", "lineage-0/20/integrity.json"):
        store.write(name, (b'{"uid": "one", "job": "tests/tiny"}',))
    with patch.object(delete_folder, "open_store", return_value=store):
        assert delete_folder.main(["mem://runs/run", "two"]).startswith("another job owns it.")
        assert len(store.objects) == 3

        assert delete_folder.main(["mem://runs/run", "one"]) == ""
        assert store.objects == {}

        store.write("lineage-0/20/integrity.json", (b"{}",))
        assert delete_folder.main(["mem://runs/run", "one"]) == ""
        assert len(store.objects) == 1
        with patch.object(store, "read", side_effect=PermissionError(errno.EACCES, "the store denies access")):
            assert delete_folder.main(["mem://runs/run", "one"]) == "the store denies access"
