"""The log of rounds in a store: what a reader accepts, and what it rejects."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import UID
from trainingjob_trainer.replicas.round_files import (
    FIRST_BASE,
    DamagedDeltaError,
    Replica,
    RoundFiles,
    RoundMember,
    RoundRecord,
)
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

FOLDER = "replicas/lineage-0/1"
FIRST, SECOND = Replica(0, 3), Replica(1, 4)
DELTAS = {"matrix": np.arange(6, dtype=np.float32).reshape(2, 3), "number": np.float32(7) * np.ones(())}


def contribute(files: RoundFiles, replica: Replica, base: str = FIRST_BASE, number: int = 1) -> RoundMember:
    """Write the delta of a replica of two processes, and return the replica as a member."""
    matrix, number_ = ([(name, DELTAS[name] + replica.slice)] for name in DELTAS)
    places = files.write_delta(number, replica, 0, matrix) | files.write_delta(number, replica, 1, number_)
    files.write_contribution(number, replica, base, places)
    return files.list_contributions(number)[replica][1]


def record_of(*members: RoundMember, base: str = FIRST_BASE, number: int = 1) -> RoundRecord:
    return RoundRecord(job_uid=UID, round=number, base=base, members=members)


@pytest.fixture(params=["posix", "objects", *SCHEMES])
def store(request: pytest.FixtureRequest, tmp_path: Path, object_servers: ObjectServers) -> Iterator[Store]:
    if request.param in SCHEMES:
        with object_servers.environment(request.param):
            yield open_store(new_root(request.param))
    else:
        yield open_store(tmp_path) if request.param == "posix" else ObjectStore()


@pytest.fixture
def files(store: Store) -> RoundFiles:
    return RoundFiles(store, UID, 0)


def test_deltas_are_read_as_they_were_written(files: RoundFiles) -> None:
    for member in (contribute(files, FIRST), contribute(files, SECOND)):
        contribution = files.read_contribution(1, member)
        for name, delta in DELTAS.items():
            np.testing.assert_array_equal(files.read_delta(contribution, name, delta.shape), delta + member.slice)


def test_a_delta_without_its_last_object_is_no_contribution(files: RoundFiles) -> None:
    files.write_delta(1, FIRST, 0, DELTAS.items())
    contribute(files, SECOND)

    assert list(files.list_contributions(1)) == [SECOND]
    assert files.list_contributions(2) == {}


def test_a_contribution_of_another_job_round_or_replica_is_left_out(files: RoundFiles, store: Store) -> None:
    contribute(files, FIRST)
    content = store.read(f"{FOLDER}/{FIRST.folder}/contribution.json", 10_000)
    others = (
        content.replace(UID.encode(), b"other"),
        content.replace(b'"round": 1', b'"round": 2'),
        content.replace(b'"slice": 0', b'"slice": 1'),
        content[:-5],
        b'{"round": 1}',
    )
    for other in others:
        assert other != content
        store.write(f"{FOLDER}/{FIRST.folder}/contribution.json", (other,))

        assert files.list_contributions(1) == {}


def test_names_of_other_programs_are_ignored(files: RoundFiles, store: Store) -> None:
    for name in ("notes.txt", "members-x.json", "slice-1", "slice-01-1/host-0", "slice-1-2-3/host-0"):
        store.write(f"{FOLDER}/{name}", (b"x",))
    store.write("replicas/lineage-0/notes/a", (b"x",))
    contribute(files, FIRST)

    assert list(files.list_contributions(1)) == [FIRST]
    assert files.find_record(1) == (None, 0)
    assert files.list_rounds() == [1]


def test_the_record_of_the_latest_complete_attempt_counts(files: RoundFiles, store: Store) -> None:
    member = contribute(files, FIRST)
    store.write(f"{FOLDER}/members-0.json", ())
    assert files.find_record(1).is_unfinished
    files.create_record(record_of(member), 1)

    assert files.find_record(1) == (record_of(member), 2)
    store.write(f"{FOLDER}/members-2.json", (b'{"job',))
    assert files.find_record(1) == (record_of(member), 3)
    assert not files.find_record(1).is_unfinished
    with pytest.raises(FileExistsError):
        files.create_record(record_of(member), 1)


def test_a_record_of_another_job_or_round_is_an_error(files: RoundFiles, store: Store) -> None:
    member, other = contribute(files, FIRST), contribute(files, SECOND)
    good = json.loads(record_of(member, other).model_dump_json())
    bad = (
        good | {"job_uid": "other"},
        good | {"round": 2},
        good | {"members": []},
        good | {"members": good["members"][::-1]},
        good | {"members": good["members"][:1] * 2},
    )
    for content in bad:
        store.write(f"{FOLDER}/members-0.json", (json.dumps(content).encode() + b"\n",))
        with pytest.raises(ValueError, match=r"1/members-0[.]json"):
            files.find_record(1)


def test_bases_depend_on_all_that_was_applied(files: RoundFiles) -> None:
    first, second = contribute(files, FIRST), contribute(files, SECOND)
    records = (
        record_of(first),
        record_of(second),
        record_of(first, second),
        record_of(first, base="other"),
        record_of(first, number=2),
        record_of(first.model_copy(update={"contribution": "0" * 64})),
    )

    assert len({record.next_base() for record in records}) == len(records)
    assert record_of(first).next_base() == record_of(first).next_base()


def test_a_damaged_delta_is_rejected(files: RoundFiles, store: Store) -> None:
    member = contribute(files, FIRST)
    contribution, name = files.read_contribution(1, member), f"{FOLDER}/{FIRST.folder}/host-0"
    content = store.read(name, 100)

    for damaged in (content[:-1], content[:-1] + b"\x01", b""):
        store.write(name, (damaged,))
        with pytest.raises(DamagedDeltaError, match="matrix has changed"):
            files.read_delta(contribution, "matrix", (2, 3))
    store.delete(name)
    with pytest.raises(DamagedDeltaError, match="host-0 is missing"):
        files.read_delta(contribution, "matrix", (2, 3))
    for shard, shape in (("other", (2, 3)), ("matrix", (3, 3))):
        with pytest.raises(DamagedDeltaError, match=f"does not have {shard}"):
            files.read_delta(contribution, shard, shape)


def test_a_contribution_that_was_replaced_is_rejected(files: RoundFiles, store: Store) -> None:
    member = contribute(files, FIRST)
    contribute(files, FIRST, base="other")

    with pytest.raises(DamagedDeltaError, match="has changed"):
        files.read_contribution(1, member)
    store.delete(f"{FOLDER}/{FIRST.folder}/contribution.json")
    with pytest.raises(DamagedDeltaError, match="cannot be read"):
        files.read_contribution(1, member)


def test_a_deleted_round_keeps_its_record_until_its_deltas_are_gone(
    files: RoundFiles, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create_record(record_of(contribute(files, FIRST)), 0)
    delete, deleted = type(store).delete_tree, list[str]()

    def interrupt(self: Store, folder: str) -> None:
        if deleted:
            raise OSError("the host dies")
        deleted.append(folder)
        delete(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "delete_tree", interrupt)
        with pytest.raises(OSError, match="dies"):
            files.delete_round(1)

    assert files.list_contributions(1) == {}
    assert files.find_record(1).record
    files.delete_round(1)
    assert files.list_rounds() == []


@pytest.mark.parametrize(
    ("saved", "left"), [(0, [2, 4, 6, 8]), (4, [6, 8]), (5, [6, 8]), (6, [6, 8]), (9, [6, 8]), (3, [4, 6, 8])]
)
def test_rounds_of_a_checkpoint_are_deleted(tmp_path: Path, saved: int, left: list[int]) -> None:
    files = RoundFiles(open_store(tmp_path), UID, 0)
    for number in (2, 4, 6, 8):
        contribute(files, FIRST, number=number)

    files.delete_rounds(saved)

    assert files.list_rounds() == left
    assert [files.find_next_record(number) for number in left] == [None] * len(left)


def test_rounds_of_former_lineages_are_deleted(store: Store) -> None:
    lineages = [RoundFiles(store, UID, lineage) for lineage in range(4)]
    for files in lineages:
        for number in (2, 4):
            contribute(files, FIRST, number=number)
    store.write("replicas/notes", (b"of the user",))

    lineages[2].delete_rounds(2)

    assert [entry.name for entry in store.list_folder("replicas")] == ["lineage-2", "lineage-3", "notes"]
    assert [files.list_rounds() for files in lineages] == [[], [], [2, 4], [2, 4]]
    assert store.read("replicas/notes", 99) == b"of the user"
