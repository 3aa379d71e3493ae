"""Replicas agree on the members of a round, while other replicas are slow, end or join."""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import UID
from tests.trainer.replicas.test_round_files import FIRST, FOLDER, SECOND, contribute, record_of
from trainingjob_trainer.replicas.round_agreement import ReplicaBehindError, RoundAgreement
from trainingjob_trainer.replicas.round_files import FIRST_BASE, Replica, RoundFiles, RoundRecord
from trainingjob_trainer.store.posix import PosixStore

NUM_WRITERS, NUM_POLLS = 6, 3


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path)


@pytest.fixture
def files(store: PosixStore) -> RoundFiles:
    return RoundFiles(store, UID, 0)


def make_agreement(
    files: RoundFiles, live: Collection[int] | Callable[[], frozenset[int]] = (0, 1), **changes: Any
) -> RoundAgreement:
    values = {"wait_seconds": ENDLESS_SECONDS, "poll_seconds": 0.002} | changes
    return RoundAgreement(files, UID, live if callable(live) else lambda: frozenset(live), **values)


def after_polls(
    act: Callable[[], object], before: Collection[int], after: Collection[int]
) -> Callable[[], frozenset[int]]:
    """Return live slices that change after some polls, together with an act."""
    polls = iter(range(10_000))

    def find_live() -> frozenset[int]:
        number = next(polls)
        if number == NUM_POLLS:
            act()
        return frozenset(before if number < NUM_POLLS else after)

    return find_live


def members_of(record: RoundRecord) -> list[Replica]:
    return [member.replica for member in record.members]


def test_a_round_waits_for_a_slow_replica(files: RoundFiles) -> None:
    contribute(files, FIRST)
    live = after_polls(lambda: contribute(files, SECOND), (0, 1), (0, 1))

    assert members_of(make_agreement(files, live).agree(1, FIRST_BASE)) == [FIRST, SECOND]


def test_a_round_ends_without_a_replica_that_is_too_slow(files: RoundFiles) -> None:
    contribute(files, FIRST)
    record = make_agreement(files, wait_seconds=0.0).agree(1, FIRST_BASE)
    contribute(files, SECOND)

    assert members_of(record) == [FIRST]
    assert make_agreement(files).agree(1, FIRST_BASE) == record


def test_a_round_ends_without_a_replica_that_dies_while_it_writes(files: RoundFiles) -> None:
    contribute(files, FIRST)
    files.write_delta(1, SECOND, 0, ())
    live = after_polls(lambda: None, (0, 1), (0,))

    assert members_of(make_agreement(files, live).agree(1, FIRST_BASE)) == [FIRST]


def test_a_round_includes_a_replica_that_is_not_known_to_be_live(files: RoundFiles) -> None:
    contribute(files, FIRST)
    contribute(files, SECOND)

    assert members_of(make_agreement(files, (0,)).agree(1, FIRST_BASE)) == [FIRST, SECOND]


@pytest.mark.parametrize("kind", ["posix", "objects"])
def test_one_of_many_writers_creates_the_record(kind: str, tmp_path: Path) -> None:
    files = RoundFiles(PosixStore(tmp_path) if kind == "posix" else ObjectStore(), UID, 0)
    barrier = threading.Barrier(NUM_WRITERS)

    def take_part(number: int) -> RoundRecord:
        barrier.wait(ENDLESS_SECONDS)
        contribute(files, Replica(number, 1))  # each finds other contributions, and would choose other members
        return make_agreement(files, wait_seconds=0.0).agree(1, FIRST_BASE)

    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        records = list(pool.map(take_part, range(NUM_WRITERS)))

    assert len({record.next_base() for record in records}) == 1
    assert files.find_record(1) == (records[0], 1)


def test_the_latest_generation_of_a_slice_is_the_member(files: RoundFiles) -> None:
    later = FIRST._replace(generation=9)
    for replica in (later, FIRST, SECOND):
        contribute(files, replica)

    assert members_of(make_agreement(files).agree(1, FIRST_BASE)) == [later, SECOND]


def test_a_record_that_was_never_written_is_replaced(files: RoundFiles, store: PosixStore) -> None:
    contribute(files, FIRST)
    store.write(f"{FOLDER}/members-0.json", ())

    assert members_of(make_agreement(files, (0,), unfinished_seconds=0.0).agree(1, FIRST_BASE)) == [FIRST]
    assert files.find_record(1).next_attempt == 2


def test_a_record_that_is_being_written_is_awaited(files: RoundFiles, store: PosixStore) -> None:
    record = record_of(contribute(files, FIRST))
    content = record.model_dump_json().encode() + b"\n"
    name = f"{FOLDER}/members-0.json"
    store.write(name, (content[:9],))
    live = after_polls(lambda: store.write(name, (content,)), (0,), (0,))

    assert make_agreement(files, live).agree(1, FIRST_BASE) == record
    assert files.find_record(1).next_attempt == 1


def test_other_outer_parameters_are_not_mixed(files: RoundFiles) -> None:
    contribute(files, FIRST)
    contribute(files, SECOND, base="other")

    record = make_agreement(files).agree(1, FIRST_BASE)

    assert members_of(record) == [FIRST]
    for find, number in ((make_agreement(files).agree, 1), (make_agreement(files).find_next, 0)):
        with pytest.raises(ReplicaBehindError, match="other outer parameters"):
            find(number, "other")


def test_a_deleted_round_is_not_decided_again(files: RoundFiles) -> None:
    first = record_of(contribute(files, FIRST))
    files.create_record(first, 0)
    files.create_record(record_of(contribute(files, FIRST, number=2), base=first.next_base(), number=2), 0)
    files.delete_round(1)

    with pytest.raises(ReplicaBehindError, match="round 2 has members with other outer parameters"):
        make_agreement(files).find_next(0, FIRST_BASE)
    contribute(files, SECOND)
    with pytest.raises(ReplicaBehindError, match="round 1 has no members any more, and round 2 has"):
        make_agreement(files, wait_seconds=0.0).agree(1, FIRST_BASE)
    assert files.find_record(1).record is None


def test_a_joining_replica_waits_for_the_end_of_a_round(files: RoundFiles) -> None:
    record = record_of(contribute(files, FIRST))
    live = after_polls(lambda: files.create_record(record, 0), (0, 1), (0, 1))

    assert make_agreement(files, live).wait_to_join(0, FIRST_BASE, 1) == record


def test_a_joining_replica_waits_only_while_others_train(files: RoundFiles) -> None:
    live = after_polls(lambda: None, (0, 1), (1,))

    assert make_agreement(files, live).wait_to_join(0, FIRST_BASE, 1) is None
