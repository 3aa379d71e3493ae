"""Rounds as the training loop uses them: when a round ends, and the state with which training continues after it."""

from typing import NamedTuple

import jax
import numpy as np

from trainingjob_trainer.models.trainable import ParamSplit
from trainingjob_trainer.replicas.replica_rounds import ReplicaRounds
from trainingjob_trainer.state import State


class EndedRound(NamedTuple):
    """A replica after a round."""

    step: int
    """The step that it continues after: later than its own, if it was behind."""
    state: State
    dropped_steps: int
    """Number of its steps that no other replica received. 0: its delta was applied."""


class ReplicaTraining:
    """The training of a replica, on one process. `split` selects the parameters that take part in rounds."""

    def __init__(self, rounds: ReplicaRounds, split: ParamSplit, sync_every: int, last_step: int) -> None:
        self._rounds = rounds
        self._split = split
        self._sync_every = sync_every
        self._last_step = last_step

    def is_due(self, step: int) -> bool:
        """Return whether a round ends after a step. The last round may be shorter."""
        return step % self._sync_every == 0 or step == self._last_step

    def join(self, state: State) -> EndedRound:
        """Join the rounds of the other replicas. Call it once all programs are compiled: they wait for this one then.

        Raises:
            TrainingError: as for `ReplicaRounds.join`.
        """
        step = self._rounds.join()
        return EndedRound(step, self._continue(step, state), 0)

    def end_round(self, step: int, state: State) -> EndedRound:
        """End the round that ends after a step, together with the other replicas.

        Raises:
            TrainingError: as for `ReplicaRounds.end_round`.
        """
        trained_steps = step - self._rounds.step
        end = self._rounds.end_round(step, self._split.split(state.params).trained)
        return EndedRound(end.step, self._continue(end.step, state), 0 if end.is_member else trained_steps)

    def _continue(self, step: int, state: State) -> State:
        """Return a state with the outer parameters, and with the inner optimizer state of this replica."""
        frozen = self._split.split(state.params).frozen
        number = jax.make_array_from_callback((), state.step.sharding, lambda _: np.asarray(step, np.int32))
        return state._replace(step=number, params=self._split.merge(self._rounds.place_params(), frozen))
