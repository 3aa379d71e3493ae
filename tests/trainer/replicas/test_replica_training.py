"""The state of a replica between rounds, with rounds that only note their calls."""

from typing import Any

import jax.numpy as jnp
import pytest

from trainingjob_trainer.models.trainable import ParamGroups
from trainingjob_trainer.replicas.outer_update import OuterRates
from trainingjob_trainer.replicas.replica_rounds import RoundEnd
from trainingjob_trainer.replicas.replica_training import ReplicaTraining, RoundSchedule
from trainingjob_trainer.state import State

FROZEN, TRAINED, OUTER = jnp.zeros(2), jnp.ones(2), jnp.full(2, 7.0)
STATE = State(
    step=jnp.int32(8),
    params={"frozen": FROZEN, "trained": TRAINED},
    opt="inner",
    non_finite=jnp.int32(0),
    skipped=jnp.int32(0),
)


class Rounds:
    """The rounds of a replica whose newest one ended with step 5."""

    slice = 1

    def __init__(self, end: RoundEnd) -> None:
        self.step = 5
        self.contributed: Any = None
        self._end = end

    def join(self) -> int:
        return self._end.step

    def end_round(self, step: int, params: Any) -> RoundEnd:
        self.contributed = step, params
        self.step = self._end.step
        return self._end

    def place_params(self) -> dict[str, Any]:
        return {"trained": OUTER}


class Split:
    """A split of parameters, one of which is frozen."""

    def split(self, tree: dict[str, Any]) -> ParamGroups:
        return ParamGroups({"trained": tree["trained"]}, {"frozen": tree["frozen"]})

    def merge(self, trained: dict[str, Any], frozen: dict[str, Any]) -> dict[str, Any]:
        return trained | frozen


def make_training(end: RoundEnd) -> tuple[ReplicaTraining, Rounds]:
    rounds: Any = Rounds(end)
    split: Any = Split()
    return ReplicaTraining(rounds, split, RoundSchedule(4, 10, OuterRates(0.3, 0.9)), STATE), rounds


def check_continues(state: State, step: int) -> None:
    assert int(state.step) == step
    assert state.step.dtype == STATE.step.dtype
    assert state.params["trained"] is OUTER
    assert state.params["frozen"] is FROZEN
    assert state.opt == "inner"


def test_a_round_ends_at_its_interval_and_at_the_last_step() -> None:
    training, _ = make_training(RoundEnd(8, (0,), is_member=True))

    assert [step for step in range(1, 11) if training.is_due(step)] == [4, 8, 10]


@pytest.mark.parametrize(
    ("end", "dropped"),
    [(RoundEnd(8, (0, 1), is_member=True), 0), (RoundEnd(12, (0,), is_member=False), 3)],
    ids=["a member", "late"],
)
def test_training_continues_with_the_outer_parameters_and_its_own_optimizer(end: RoundEnd, dropped: int) -> None:
    training, rounds = make_training(end)

    step, state, dropped_steps = training.end_round(8, STATE)

    assert (step, dropped_steps) == (end.step, dropped)
    number, contributed = rounds.contributed
    assert (number, list(contributed)) == (8, ["trained"])
    assert contributed["trained"] is TRAINED
    check_continues(state, end.step)


def test_a_replica_that_joins_drops_nothing() -> None:
    training, _ = make_training(RoundEnd(12, (0,), is_member=False))

    step, state, dropped_steps = training.join(STATE)

    assert (step, dropped_steps) == (12, 0)
    check_continues(state, 12)


SAVERS: dict[str, tuple[RoundEnd, bool]] = {
    "the lowest member": (RoundEnd(8, (1, 2), is_member=True), True),
    "another member": (RoundEnd(8, (0, 1), is_member=True), False),
    "one that is late": (RoundEnd(8, (2,), is_member=False), False),
}


@pytest.mark.parametrize(("end", "want"), SAVERS.values(), ids=SAVERS.keys())
def test_the_member_with_the_lowest_slice_saves_a_round(end: RoundEnd, want: bool) -> None:
    training, _ = make_training(end)
    training.join(STATE)
    assert training.is_saver, "the one that has ended the last round may be lost"

    training.end_round(8, STATE)

    assert training.is_saver is want
