"""DiLoCo of replicas that have only a store in common, against DiLoCo written again in one process."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.tiny import UID, make_layout
from tests.support.trainer.training import BATCH, ONE, Run, save_and_restore, spec_with
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sampler import SampleShare
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.models.trainable import ParamSplit
from trainingjob_trainer.replicas.outer_update import OuterRates
from trainingjob_trainer.replicas.replica_rounds import RoundEnd
from trainingjob_trainer.replicas.replica_training import RoundSchedule, describe_saved, open_replica
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_files import Replica, RoundFiles
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State
from trainingjob_trainer.store.posix import PosixStore

NUM_REPLICAS, SYNC_EVERY = 2, 2
ENDLESS_STEPS = 1_000_000
RATES = OuterRates(0.3, 0.9)
HALF = make_layout(devices_per_host=2, rows_per_shard=BATCH // 2 // NUM_REPLICAS)


class TrainedReplica:
    """A replica of a job, over two devices of the test's process."""

    def __init__(self, job: "ReplicatedJob", slice_number: int) -> None:
        self.run = Run(job.spec, HALF)
        self.batches = BatchLoader(
            HALF, self.run.steps.batch_sharding, BATCH, share=SampleShare(slice_number, NUM_REPLICAS)
        )
        self.slice = slice_number
        self.open(job, Replica(slice_number, 1), self.run.state)

    def open(self, job: "ReplicatedJob", replica: Replica, state: State) -> None:
        """Begin with a state: a restored one, or that before the first step."""
        agreement = RoundAgreement(job.files, UID, lambda: frozenset(job.live), ENDLESS_SECONDS, poll_seconds=0.002)
        schedule = RoundSchedule(SYNC_EVERY, ENDLESS_STEPS, job.rates)
        self.run.state, self.training = open_replica(
            agreement, replica, ProcessGroup(0, 1), schedule, self.split, self.run.steps.state_shapes, state
        )
        self.rounds = self.training.rounds

    @property
    def split(self) -> ParamSplit:
        return split_model_of(self.run.spec).param_split

    def train(self, first: int, num_steps: int = SYNC_EVERY) -> list[float]:
        """Train steps, and return their losses."""
        losses = []
        for step in range(first, first + num_steps):
            batch = self.batches.train_batch(self.run.index, step, self.run.spec.training.seed)
            self.run.state, metrics = self.run.step(self.run.state, batch, self.run.controls())
            losses.append(float(metrics.loss))
        return losses

    def end_round(self) -> RoundEnd:
        self.run.state = self.training.end_round(int(self.run.state.step), self.run.state).state
        assert self.training.newest_end
        return self.training.newest_end

    def params(self) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.run.state.params)]

    def outer_bytes(self) -> bytes:
        outer = self.rounds.outer
        return b"".join(part[name].tobytes() for part in outer for name in sorted(part))


class Checkpoint:
    """A checkpoint at the end of a round: the state of the replica that saves, and that of the outer optimizer."""

    def __init__(self, folder: Path, saved: TrainedReplica) -> None:
        self.state: State = jax.device_get(saved.run.state)
        whole = saved.training.attach_outer(saved.run.state)
        self._restored = save_and_restore(folder, whole, describe_saved(saved.run.steps.state_shapes, saved.split))

    def join(self, job: "ReplicatedJob", replica: TrainedReplica) -> int:
        """Restore the checkpoint for a replica, and let the replica join; return the step that it continues after."""
        replica.open(job, Replica(replica.slice, 2), self._restored)
        step, replica.run.state, _ = replica.training.join(replica.run.state)
        return step


class ReplicatedJob:
    """A job of replicas below a folder."""

    def __init__(self, folder: Path, spec: TrainingJobSpec, rates: OuterRates = RATES) -> None:
        self.files = RoundFiles(PosixStore(folder), UID, 0)
        self.spec, self.rates = spec, rates
        self.live: Collection[int] = range(NUM_REPLICAS)

    def end_round(self, *replicas: TrainedReplica) -> list[RoundEnd]:
        with ThreadPoolExecutor(len(replicas)) as pool:
            return list(pool.map(TrainedReplica.end_round, replicas))


class ReferenceReplica:
    """A replica of the reference: a state on one device, and no files."""

    def __init__(self, spec: TrainingJobSpec, slice_number: int, state: State) -> None:
        self.run = Run(spec, ONE_QUARTER)
        self.run.state = jax.tree.map(jax.numpy.array, state)
        self.batches = BatchLoader(
            ONE_QUARTER, self.run.steps.batch_sharding, BATCH, share=SampleShare(slice_number, NUM_REPLICAS)
        )

    train = TrainedReplica.train


class Reference:
    """DiLoCo in one process, as Algorithm 1 of the paper has it, in float64."""

    def __init__(self, spec: TrainingJobSpec, rates: OuterRates) -> None:
        self.rates = rates
        run = Run(spec, ONE_QUARTER)
        self.first = jax.device_get(run.state)
        self.outer = [np.float64(leaf) for leaf in jax.tree.leaves(self.first.params)]
        self.momentum = [np.zeros_like(leaf) for leaf in self.outer]

    def end_round(self, members: Sequence[ReferenceReplica], others: Sequence[ReferenceReplica] = ()) -> None:
        replicas = [jax.tree.leaves(member.run.state.params) for member in members]
        for place, leaves in enumerate(zip(*replicas, strict=True)):
            gradient = self.outer[place] - np.mean([np.float64(leaf) for leaf in leaves], axis=0)
            self.momentum[place] = self.rates.momentum * self.momentum[place] + gradient
            step = gradient + self.rates.momentum * self.momentum[place]
            self.outer[place] = self.outer[place] - self.rates.learning_rate * step
        for replica in (*members, *others):
            shardings = replica.run.state.params
            leaves = [np.float32(leaf) for leaf in self.outer]
            params = jax.tree.unflatten(jax.tree.structure(shardings), leaves)
            placed: Any = jax.tree.map(lambda leaf, old: jax.device_put(leaf, old.sharding), params, shardings)
            replica.run.state = replica.run.state._replace(params=placed)


ONE_QUARTER = ONE.model_copy(update={"rows_per_shard": BATCH // NUM_REPLICAS})


def check_equal(reference: Reference, *replicas: TrainedReplica) -> None:
    """Check that replicas have the outer parameters of the reference, bitwise equal among each other."""
    assert len({replica.outer_bytes() for replica in replicas}) == 1
    assert len({replica.rounds.base for replica in replicas}) == 1
    for replica in replicas:
        for leaf, want in zip(replica.params(), reference.outer, strict=True):
            np.testing.assert_allclose(leaf, want, atol=1e-5)


@pytest.mark.thorough
def test_rounds_with_a_lost_and_a_late_replica_are_those_of_the_paper(tmp_path: Path) -> None:
    spec = spec_with(schedule__type="constant")
    job, reference = ReplicatedJob(tmp_path, spec), Reference(spec, RATES)
    ours = [TrainedReplica(job, number) for number in range(NUM_REPLICAS)]
    theirs = [ReferenceReplica(spec, number, reference.first) for number in range(NUM_REPLICAS)]

    def train(first: int, numbers: Collection[int]) -> None:
        for number in numbers:
            assert ours[number].train(first) == pytest.approx(theirs[number].train(first), abs=1e-5)

    # Rounds 1 and 2: all replicas are members.
    for first in (1, 3):
        train(first, (0, 1))
        ends = job.end_round(*ours)
        assert ends == [RoundEnd(first + 1, (0, 1), is_member=True)] * 2
        reference.end_round(theirs)
        check_equal(reference, *ours)

    # Round 3: replica 1 is lost in the middle, and the other one does not wait.
    checkpoint = Checkpoint(tmp_path, ours[0])
    ours[1].train(5, 1)
    job.live = (0,)
    train(5, (0,))
    assert job.end_round(ours[0]) == [RoundEnd(6, (0,), is_member=True)]
    reference.end_round(theirs[:1])
    check_equal(reference, ours[0])

    # Round 4: a new replica 1 restores the checkpoint after round 2, finds round 3, and waits for the end of round 4.
    ours[1] = TrainedReplica(job, 1)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(checkpoint.join, job, ours[1])
        train(7, (0,))
        assert job.end_round(ours[0]) == [RoundEnd(8, (0,), is_member=True)]
        assert joining.result(ENDLESS_SECONDS) == 8
    theirs[1] = ReferenceReplica(spec, 1, checkpoint.state)
    reference.end_round(theirs[:1], theirs[1:])
    check_equal(reference, *ours)

    # Round 5: both are members again, of two generations.
    job.live = (0, 1)
    train(9, (0, 1))
    assert job.end_round(*ours) == [RoundEnd(10, (0, 1), is_member=True)] * 2
    reference.end_round(theirs)
    check_equal(reference, *ours)

    # Rounds 6 and 7: replica 1 is so late that its delta is dropped. It continues with the others after round 7.
    job.live = (0,)
    train(11, (0, 1))
    for step in (12, 14):
        assert job.end_round(ours[0]) == [RoundEnd(step, (0,), is_member=True)]
        reference.end_round(theirs[:1], theirs[1:] if step == 14 else ())
        if step == 12:
            train(13, (0,))
    assert job.end_round(ours[1]) == [RoundEnd(14, (0,), is_member=False)]
    check_equal(reference, *ours)


@pytest.mark.thorough
def test_with_sgd_and_the_mean_of_the_parameters_it_is_data_parallelism(tmp_path: Path) -> None:
    spec = spec_with(optimizer__type="sgd", optimizer__clipNorm=0)
    job, whole = ReplicatedJob(tmp_path, spec, OuterRates(1.0, 0.0)), Run(spec, ONE)
    ours = [TrainedReplica(job, number) for number in range(NUM_REPLICAS)]

    for step, metrics in enumerate(whole.train(4), start=1):
        losses = [replica.train(step, 1) for replica in ours]
        assert np.mean(losses) == pytest.approx(float(metrics.loss), abs=1e-5)
        job.end_round(*ours)

    for leaf, want in zip(ours[0].params(), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_allclose(leaf, want, atol=1e-5)
