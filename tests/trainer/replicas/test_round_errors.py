"""Errors of rounds are failures of one slice, which name the field, and what to do."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import UID
from tests.trainer.replicas.test_round_files import SECOND, record_of
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.replicas.outer_items import copy_shards
from trainingjob_trainer.replicas.outer_update import OuterRates, begin_outer
from trainingjob_trainer.replicas.replica_rounds import ReplicaRounds
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_files import FIRST_BASE, Replica, RoundFiles
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.failure_records import failure_record
from trainingjob_trainer.runtime.process_group import ProcessGroup

ROUND = "replicas/lineage-0/4"
PARAMS = {"scale": jnp.ones(3, jnp.float32)}


class Slice:
    """A slice of two parameters of three numbers, whose next round ends with step 4."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.files = RoundFiles(self.store, UID, 0)
        self.rounds = ReplicaRounds(
            RoundAgreement(self.files, UID, lambda: frozenset({0}), wait_seconds=0.0),
            Replica(0, 1),
            ProcessGroup(0, 1),
            PARAMS,
            OuterRates(1.0, 0.0),
            begin_outer(copy_shards(PARAMS)),
            0,
            FIRST_BASE,
        )

    def end(self, base: str = FIRST_BASE) -> None:
        """End the round with a member of another slice, whose delta is one."""
        (name,) = self.rounds.outer.params
        places = self.files.write_delta(4, SECOND, 0, [(name, np.ones(3, np.float32))])
        self.files.write_contribution(4, SECOND, base, places)
        self.files.create_record(record_of(self.files.list_contributions(4)[SECOND][1], base=base, number=4), 0)


def break_delta(one: Slice) -> None:
    one.end()
    one.store.write(f"{ROUND}/{SECOND.folder}/host-0", (bytes(12),))


def delete_delta(one: Slice) -> None:
    one.end()
    one.store.delete(f"{ROUND}/{SECOND.folder}/host-0")
    one.store.write("lineage-0/4.g1.s1.0123abcd/integrity.json", (b"{}",))


def break_record(one: Slice) -> None:
    one.store.write(f"{ROUND}/members-0.json", (b"{}\n",))


def break_base(one: Slice) -> None:
    one.end("other")


def break_store(one: Slice) -> None:
    def fail(folder: str, *, is_current: bool = False) -> Any:
        raise PermissionError(13, "Permission denied")

    one.store.list_folder = fail  # type: ignore[method-assign]


BEHIND = "must restore a newer checkpoint: "
BREAKS: dict[str, tuple[Callable[[Slice], None], bool, str]] = {
    "a damaged delta": (
        break_delta,
        False,
        r"lineage-0 is damaged: 4/slice-1-4: .*scale.*suspend the job",
    ),
    "a deleted delta": (delete_delta, False, rf"{BEHIND}4/slice-1-4/host-0 is missing"),
    "another program's file": (break_record, True, r"must hold only files of a TrainingJob: 4/members-0[.]json"),
    "another base": (break_base, False, rf"{BEHIND}round 4 has members with other outer"),
    "no rights": (break_store, True, r"exchanging deltas below .*: Permission denied[.] Every host must be able"),
}


@pytest.mark.parametrize(("act", "is_fatal", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_an_error_of_storage_is_reported(act: Callable[[Slice], None], is_fatal: bool, message: str) -> None:
    for run in (lambda one: one.rounds.join(), lambda one: one.rounds.end_round(4, PARAMS)):
        one = Slice()
        act(one)
        with pytest.raises(TrainingError, match=message) as raised:
            run(one)

        assert (raised.value.reason, raised.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")
        assert (raised.value.value, raised.value.fatal) == ("mem://bucket", is_fatal)
        assert failure_record(raised.value, step=3).is_replica_behind == message.startswith(BEHIND)
        assert [shard.tolist() for shard in one.rounds.outer.params.values()] == [[1.0, 1.0, 1.0]]


def test_a_replica_with_parameters_that_are_not_finite_contributes_nothing() -> None:
    one = Slice()
    with pytest.raises(TrainingError, match="joins the others again") as raised:
        one.rounds.end_round(4, {"scale": jnp.array([1.0, jnp.nan, 1.0])})

    assert (raised.value.reason, raised.value.fatal) == (FailureReason.NON_FINITE, False)
    assert one.files.list_contributions(4) == {}


def test_without_an_error_the_round_is_applied() -> None:
    one = Slice()
    one.end()

    assert one.rounds.join() == 4
    assert [shard.tolist() for shard in one.rounds.outer.params.values()] == [[0.0, 0.0, 0.0]]
