"""Training in the test's own process: tiny jobs, over as many of its eight devices as a layout has."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.support.trainer.distillation import MadeUpShares
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import Layout, Span
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.packing.pack import pack_documents
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.models.decoder import Params, split_model_of
from trainingjob_trainer.objectives.scoring import ScoreSums
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import Batch, Controls, Signal, State, StepMetrics
from trainingjob_trainer.step import StepPrograms

NUM_STEPS = 6
BATCH = 8
TEACHER_SEED = 77


def spec_with(**changes: Any) -> TrainingJobSpec:
    values = {"training__steps": NUM_STEPS, "training__globalBatchSize": BATCH, "training__seed": 5}
    values |= {"schedule__type": "cosine"} | changes
    return TrainingJobSpec.model_validate(make_spec(Path("/unused/here"), Path("/unused"), **values))


def make_index(spec: TrainingJobSpec) -> TokenDataset:
    rng, length, packing = np.random.default_rng(0), spec.training.sequence_length, spec.data.isolated_packing
    tokens = rng.integers(0, 257, 1000, dtype=np.uint16)
    pieces = None
    if packing:
        ends = np.append(np.sort(rng.choice(np.arange(1, 1000), 120, replace=False)), 1000)
        pieces = pack_documents(ends, length, packing)
    index = TokenDataset("made up", tokens, length, pieces)
    stored = spec.objective.probabilities if spec.objective else None
    return replace(index, stored=MadeUpShares(index, spec.model.vocab_size, stored.per_token)) if stored else index


class Run:
    """Training in this process, over as many of its devices as the layout has."""

    def __init__(self, spec: TrainingJobSpec, layout: Layout) -> None:
        self.spec = spec
        written = spec.model_dump_json()
        self.steps, self.step, self.evaluation = compiled(written, layout.model_dump_json())
        history = SampleHistory(spec.training.batch_sizes)
        self.batches = BatchLoader(layout, self.steps.batch_sharding, spec.training.largest_batch, history)
        self.index = make_index(spec)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.steps.state_shapes)
        self.state: State = jax.device_put(initial_state(written), shardings)
        self.teacher: Params | None = place_teacher(self.steps, spec)

    def batch(self, number: int) -> Batch:
        return self.batches.train_batch(self.index, number, self.spec.training.seed)

    def held_out_batch(self) -> Batch:
        return self.batches.held_out_batch(self.index, 0)

    def controls(self, asked: Signal = Signal.NONE) -> Controls:
        return self.steps.controls(asked, self.spec.training.steps, self.teacher)

    def evaluate(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        sums = self.score(params, batch)
        return sums.loss, sums.weight

    def score(self, params: Params, batch: Batch) -> ScoreSums:
        if batch.target_bytes is None:  # a batch of training
            batch = batch._replace(target_bytes=batch.targets)
        reference = self.state.reference or self.teacher
        sums: ScoreSums = self.evaluation(params, batch, self.steps.signals(Signal.NONE), reference)[0]
        return sums

    def train(self, num_steps: int = NUM_STEPS) -> Iterator[StepMetrics]:
        first = int(self.state.step) + 1
        for number in range(first, first + num_steps):
            self.state, measures = self.step(self.state, self.batch(number), self.controls())
            yield measures


@cache
def compiled(spec: str, layout: str) -> tuple[StepPrograms, Any, Any]:
    """Return the programs of a job on a layout; tests of the same two share the compiled programs."""
    over = Layout.model_validate_json(layout)
    steps = StepPrograms(TrainingJobSpec.model_validate_json(spec), build_mesh(jax.devices()[: over.num_devices], over))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    step = jax.jit(steps.train, donate_argnums=0, out_shardings=(shardings, None))
    return steps, step, jax.jit(steps.evaluate)


@cache
def initial_state(spec: str) -> State:
    """Return the state before the first step, created once for all layouts."""
    steps = StepPrograms(TrainingJobSpec.model_validate_json(spec), build_mesh(jax.devices()[:1], ONE))
    return jax.device_get(jax.jit(steps.init)())


def place_teacher(steps: StepPrograms, spec: TrainingJobSpec) -> Params | None:
    """Return random parameters of the teacher of a job, if it has one."""
    described = describe_teacher(spec)
    if described is None:
        return steps.teacher_shapes  # no parameters, or none at all
    params = split_model_of(described).init(TEACHER_SEED)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.teacher_shapes)
    placed: Params = jax.device_put(params, shardings)
    return placed


def sequences_of(batch: Batch) -> np.ndarray:
    """Return the sequences of a batch [A, M, R, L + 1], with one token more than they predict."""
    return np.concatenate([np.asarray(batch.tokens), np.asarray(batch.targets)[..., -1:]], axis=-1)


def losses(spec: TrainingJobSpec, layout: Layout) -> list[float]:
    return [float(measures.loss) for measures in Run(spec, layout).train()]


ONE = make_layout(devices_per_host=1, ici=AxisDegrees(), rows_per_shard=8)


def flat(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def numpy_tree(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def check_restored(folder: Path, run: Run) -> State:
    """Train two steps, restore their checkpoint, and check that each array is the saved one. Return the state."""
    list(run.train(2))
    restored = save_and_restore(folder, run.state, run.steps.state_shapes)
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return restored


def save_and_restore(folder: Path, state: State, target: State) -> State:
    """Return a state as the next generation restores it, with the shapes and shardings of a target."""
    config = make_config(make_spec(folder, folder))
    step = int(state.step)
    with (folder / "events").open("wb", buffering=0) as file:
        first, second = (
            Checkpoints(folder, config, world, ProcessGroup(0, 1), "index", AgentEvents(file.fileno()))
            for world in (make_world(1, 1), make_world(2, 1, (Span(generation=1, first=1, last=step),)))
        )
        first.save(step, state)
        first.wait()
        restored = second.restore(target)
    assert restored
    return restored
