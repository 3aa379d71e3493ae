"""The rounds of a replica: from its parameters to a delta, and from the members' deltas to the next parameters.

All processes of a replica call the same methods at the same steps. Process 0 agrees with the other replicas, and each
process reads and writes its own shards.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from pydantic import TypeAdapter

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.replicas.outer_update import OuterRates, OuterState, compute_delta, mean_delta, update_outer
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_errors import training_errors
from trainingjob_trainer.replicas.round_files import Contribution, DeltaShard, Replica, RoundFiles, RoundRecord
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.snapshot_restore import assemble
from trainingjob_trainer.snapshots.state_shards import Shard, Shards
from trainingjob_trainer.store.parallel_requests import map_in_flight

LOG = logging.getLogger(__name__)
EXCHANGE_SECONDS = 3600.0
"""Seconds that the processes of a replica wait for each other: process 0 waits for other replicas meanwhile."""
PARALLEL_READS = 4
"""Shards that a process reads at a time: each is in memory once for every member."""
PLACES = TypeAdapter(dict[str, DeltaShard])


class RoundEnd(NamedTuple):
    """The end of a round, as a replica has seen it."""

    step: int
    """The step that it continues after: later than its own, if it was behind."""
    members: tuple[int, ...]
    """The slices whose deltas were applied in the round that it trained."""
    is_member: bool
    """Whether its own delta was."""


class ReplicaRounds:
    """The rounds of one replica on one process.

    `params` has the shapes and shardings of the trained parameters. `outer` is the state after the round that ended
    with `step`, and `base` is that of the next round. `end_round` and `join` change them. A replica that starts from
    scratch has step 0 and `FIRST_BASE`.
    """

    def __init__(
        self,
        agreement: RoundAgreement,
        replica: Replica,
        peers: ProcessGroup,
        params: Params,
        rates: OuterRates,
        outer: OuterState,
        step: int,
        base: str,
    ) -> None:
        self._agreement = agreement
        self._files: RoundFiles = agreement.files
        self._replica = replica
        self._peers = peers
        self._params = params
        self._rates = rates
        self._shards = Shards(params)
        self._exchanges = 0
        self.outer = outer
        self.step = step
        self.base = base

    @property
    def slice(self) -> int:
        """Return the slice that the replica trains."""
        return self._replica.slice

    def join(self) -> int:
        """Apply all rounds that have ended, wait for the end of one that others train, and return its step.

        Raises:
            TrainingError: rounds after the restored one are deleted or damaged, or the store does not respond.
        """
        with training_errors(self._files):
            self._apply_ended()
            record = self._share(lambda: self._agreement.wait_to_join(self.step, self.base, self._replica.slice))
            if record:
                self._apply(record)
                self._apply_ended()
        return self.step

    def end_round(self, step: int, params: Params) -> RoundEnd:
        """Contribute to the round that ends with a step, and apply the update of its members to the outer parameters.

        A replica that is late applies all rounds that have ended, and its delta is dropped.

        Raises:
            TrainingError: the parameters are not finite, rounds are deleted or damaged, other replicas have other outer
                parameters, or the store does not respond.
        """
        with training_errors(self._files):
            record = self._share(lambda: self._agreement.find_next(self.step, self.base))
            is_late = record is not None
            if record is None:
                self._contribute(step, params)
                record = self._share(lambda: self._agreement.agree(step, self.base))
            assert record is not None  # noqa: S101  # an agreement is a record
            is_member = not is_late and self._replica in [member.replica for member in record.members]
            self._apply(record, params if is_member else None)
            if not is_member:
                LOG.warning("dropped the delta of a round step=%d slice=%d", step, self._replica.slice)
                self._apply_ended()
        return RoundEnd(self.step, tuple(member.slice for member in record.members), is_member)

    def place_params(self) -> Params:
        """Return the outer parameters on the devices, in the format of the parameters."""
        held = {
            number: self.outer.params[shard.name].astype(shard.dtype)
            for number, shard in self._shards.local_shards.items()
        }
        return assemble(self._shards, self._params, held, None)

    def delete_rounds(self, saved: int) -> None:
        """Delete the rounds that no replica needs once a step is saved. The next call retries what fails."""
        try:
            self._files.delete_rounds(saved)
        except OSError as error:
            LOG.warning("an old round cannot be deleted error=%s", error)

    def _contribute(self, step: int, params: Params) -> None:
        """Write the delta of this replica, each shard by the first process that has it."""
        own = {
            shard.name
            for shard in self._shards.local_shards.values()
            if self._peers.process_of(shard.devices[0]) == self._peers.process
        }
        deltas = self._iterate_deltas(params, own)
        places = self._files.write_delta(step, self._replica, self._peers.process, deltas)
        texts = self._exchange(PLACES.dump_json(places).decode())
        if self._peers.process == 0:
            merged = {name: place for text in texts for name, place in PLACES.validate_json(text).items()}
            self._files.write_contribution(step, self._replica, self.base, merged)

    def _apply_ended(self) -> None:
        """Apply the rounds that have ended without this replica, in their order."""
        while record := self._share(lambda: self._agreement.find_next(self.step, self.base)):
            self._apply(record)

    def _apply(self, record: RoundRecord, own: Params | None = None) -> None:
        """Apply the update of a round. `own` are the parameters of this replica, if it is a member.

        The outer state changes only once all deltas are read.
        """
        contributions = [self._files.read_contribution(record.round, member) for member in record.members]
        arrays = {} if own is None else self._local_arrays(own)

        def read_mean(shard: Shard) -> np.ndarray:
            return mean_delta(self._list_deltas(shard, contributions, arrays))

        shards = tuple(self._shards.local_shards.values())
        means = map_in_flight(read_mean, shards, PARALLEL_READS)
        update_outer(self.outer, dict(zip((shard.name for shard in shards), means, strict=True)), self._rates)
        self.step, self.base = record.round, record.next_base()

    def _list_deltas(
        self, shard: Shard, contributions: Sequence[Contribution], own: Mapping[str, jax.Array]
    ) -> Iterator[np.ndarray]:
        """Yield the delta of each member, in order. That of this replica is computed again, bitwise equal."""
        for contribution in contributions:
            if own and contribution.replica == self._replica:
                yield compute_delta(shard.name, self.outer.params[shard.name], np.asarray(own[shard.name]))
            else:
                yield self._files.read_delta(contribution, shard.name, shard.shape)

    def _iterate_deltas(self, params: Params, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name, array in self._local_arrays(params).items():
            if name in names:
                yield name, compute_delta(name, self.outer.params[name], np.asarray(array))

    def _local_arrays(self, params: Params) -> dict[str, jax.Array]:
        return {shard.name: array for shard, array in self._shards.local_arrays(params)}

    def _share(self, find: Callable[[], RoundRecord | None]) -> RoundRecord | None:
        """Return the record that process 0 finds. An error there ends the world, as any error of a process does."""
        found = find() if self._peers.process == 0 else None
        text = self._exchange(found.model_dump_json() if found else "")[0]
        return RoundRecord.model_validate_json(text) if text else None

    def _exchange(self, text: str) -> tuple[str, ...]:
        self._exchanges += 1
        return self._peers.exchange(f"round/{self._exchanges}", text, EXCHANGE_SECONDS)
