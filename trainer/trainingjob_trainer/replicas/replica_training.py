"""Rounds as the training loop uses them: when a round ends, and the state with which training continues after it.

All replicas have equal parameters at the end of a round. So one of them saves it: the member with the lowest slice.
"""

from typing import NamedTuple

import jax
import numpy as np

from trainingjob_trainer.models.trainable import ParamSplit
from trainingjob_trainer.replicas.outer_items import attach_outer, copy_shards, describe_outer, detach_outer
from trainingjob_trainer.replicas.outer_update import OuterRates, begin_outer
from trainingjob_trainer.replicas.replica_rounds import ReplicaRounds, RoundEnd
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_files import FIRST_BASE, Replica
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State


class RoundSchedule(NamedTuple):
    """When rounds end, and how their outer update is computed. The last round may be shorter."""

    sync_every: int
    """Steps of a round."""
    last_step: int
    rates: OuterRates


class EndedRound(NamedTuple):
    """A replica after a round."""

    step: int
    """The step that it continues after: later than its own, if it was behind."""
    state: State
    dropped_steps: int
    """Number of its steps that no other replica received. 0: its delta was applied."""


def describe_saved(shapes: State, split: ParamSplit) -> State:
    """Return the shapes and shardings of a replica's state in a checkpoint, from those of the state on the devices."""
    return describe_outer(shapes, split.split(shapes.params).trained)


def open_replica(
    agreement: RoundAgreement,
    replica: Replica,
    peers: ProcessGroup,
    schedule: RoundSchedule,
    split: ParamSplit,
    shapes: State,
    state: State,
) -> tuple[State, "ReplicaTraining"]:
    """Return the state on the devices and the training of a replica, before it joins the others.

    `shapes` are those of the state on the devices. `state` was restored into `describe_saved`, or is that before the
    first step, without the items of the outer optimizer.
    """
    if state.outer_base is None:
        outer, base = begin_outer(copy_shards(split.split(state.params).trained)), FIRST_BASE
    else:
        state, outer, base = detach_outer(state)
    trained, step = split.split(shapes.params).trained, int(np.asarray(state.step))
    rounds = ReplicaRounds(agreement, replica, peers, trained, schedule.rates, outer, step, base)
    return state, ReplicaTraining(rounds, split, schedule, describe_saved(shapes, split))


class ReplicaTraining:
    """The training of a replica, on one process. `split` selects the parameters that take part in rounds.

    `abstract_state` is the result of `describe_saved`.
    """

    def __init__(
        self, rounds: ReplicaRounds, split: ParamSplit, schedule: RoundSchedule, abstract_state: State
    ) -> None:
        self.rounds = rounds
        self._split = split
        self._schedule = schedule
        self._abstract_state = abstract_state
        self.newest_end: RoundEnd | None = None
        """The end of the newest round. None: no round has ended since this replica has joined."""

    @property
    def is_saver(self) -> bool:
        """Return whether this replica saves the newest round.

        One that joins after the last step saves it: the replica that has ended the round may be lost.
        """
        newest = self.newest_end
        return newest is None or (newest.is_member and newest.members[0] == self.rounds.slice)

    def attach_outer(self, state: State) -> State:
        """Return a state at the end of a round with the items of the outer optimizer, for a checkpoint."""
        return attach_outer(state, self._abstract_state, self.rounds.outer, self.rounds.base)

    def delete_rounds(self, saved: int) -> None:
        """Delete the rounds that no replica needs once a step is saved. The next call retries what fails."""
        self.rounds.delete_rounds(saved)

    def is_due(self, step: int) -> bool:
        """Return whether a round ends after a step."""
        return step % self._schedule.sync_every == 0 or step == self._schedule.last_step

    def join(self, state: State) -> EndedRound:
        """Join the rounds of the other replicas. Call it once all programs are compiled: they wait for this one then.

        Raises:
            TrainingError: as for `ReplicaRounds.join`.
        """
        step = self.rounds.join()
        return EndedRound(step, self._continue(step, state), 0)

    def end_round(self, step: int, state: State) -> EndedRound:
        """End the round that ends after a step, together with the other replicas.

        Raises:
            TrainingError: as for `ReplicaRounds.end_round`.
        """
        trained_steps = step - self.rounds.step
        end = self.newest_end = self.rounds.end_round(step, self._split.split(state.params).trained)
        return EndedRound(end.step, self._continue(end.step, state), 0 if end.is_member else trained_steps)

    def _continue(self, step: int, state: State) -> State:
        """Return a state with the outer parameters, and with the inner optimizer state of this replica."""
        frozen = self._split.split(state.params).frozen
        number = jax.make_array_from_callback((), state.step.sharding, lambda _: np.asarray(step, np.int32))
        return state._replace(step=number, params=self._split.merge(self.rounds.place_params(), frozen))
