"""Speed of the trainer against a hand-written donated jit loop of the same 10.6 M model, on one CPU device.

Bare step: both train in one process, from the same weights, on the same batches, in blocks of a few steps that
alternate (A B B A), so that other load on the machine meets both.

Whole loop: `trainingjob run` with data, metrics and checkpoints, and the hand-written loop with none of them, as
processes that alternate. Both are timed between two of their steps, after compilation.

The figures are medians over the pairs. A CPU shows overhead and the quality of the compiled program, not the speed of
an accelerator.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from rich.console import Console
from rich.progress import track

from e2e.benchmarks import handwritten
from e2e.benchmarks.figures import Figure, publish
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.optimizer import AdamW
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sampler import samples_of_step, sequences_of_samples
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Batch, Signal
from trainingjob_trainer.step import StepPrograms

BARE_PAIRS = 6
BLOCK_STEPS = 3
LOOP_PAIRS = 4
FIRST_TIMED, LAST_TIMED = 4, 24
SAVE_EVERY = 10
STEP_GOAL, LOOP_GOAL = 0.99, 0.97
MAX_LOSS_DIFFERENCE = 1e-3
NUM_PARAMS = 10_621_184
BATCH, LENGTH = 4, 512
SPEC: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
    "model": {
        "vocabSize": 8192,
        "embedDim": 256,
        "mlpDim": 704,
        "numLayers": 8,
        "numHeads": 4,
        "numKvHeads": 4,
        "headDim": 64,
    },
    "data": {"train": [{"name": "stdlib", "path": "python:", "pattern": "*.py"}]},
    "training": {"steps": LAST_TIMED, "globalBatchSize": BATCH, "sequenceLength": LENGTH},
    "optimizer": {"learningRate": 0.0003},
    "schedule": {"type": "constant"},
    "precision": {"params": "float32", "compute": "float32"},
    "checkpoint": {"uri": "/shared/bench", "save": {"everySteps": SAVE_EVERY}},
    "metrics": {"everySteps": 1},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}

SINGLE = Layout(
    num_slices=1,
    hosts_per_slice=1,
    devices_per_host=1,
    ici=AxisDegrees(),
    dcn=AxisDegrees(),
    rows_per_shard=BATCH,
    accumulation=1,
    padding_rows=0,
)

type Step = Callable[[int], jax.Array]
"""Trains one step on a batch of this number, and returns its loss."""


def make_dataset() -> TokenDataset:
    """Return random tokens, enough for one block of steps."""
    tokens = np.random.default_rng(0).integers(0, 8192, BATCH * LENGTH * (BLOCK_STEPS + 1) + 1, dtype=np.uint16)
    return TokenDataset("random", tokens, LENGTH)


def shape_of(spec: TrainingJobSpec) -> handwritten.Shape:
    """Return the hyperparameters of a spec for the hand-written loop."""
    model, optimizer = spec.model, spec.optimizer
    adam = optimizer.resolved()
    assert isinstance(adam, AdamW), "the hand-written loop has AdamW"
    return handwritten.Shape(
        num_layers=model.num_layers,
        rope_theta=model.rope.theta,
        norm_epsilon=model.norm.epsilon,
        learning_rate=optimizer.learning_rate,
        beta1=adam.beta1,
        beta2=adam.beta2,
        epsilon=adam.epsilon,
        weight_decay=optimizer.weight_decay.rate,
        clip_norm=optimizer.clip_norm,
    )


@dataclass
class CompiledStep:
    """Our compiled step, and the parameters before its first call."""

    step: Step
    params: Any
    program: jax.stages.Compiled


def read_batches(spec: TrainingJobSpec, layout: Layout) -> tuple[list[Batch], list[np.ndarray]]:
    """Return the batches of one block for the trainer, and their tokens with the last target, `[BATCH, LENGTH + 1]`."""
    sharding = StepPrograms(spec, build_mesh(jax.devices()[:1], layout)).batch_sharding
    dataset, loader = make_dataset(), BatchLoader(layout, sharding, BATCH)
    batches = [loader.train_batch(dataset, number, spec.training.seed) for number in range(1, 1 + BLOCK_STEPS)]
    samples = [samples_of_step(number, ((1, BATCH),), ()) for number in range(1, 1 + BLOCK_STEPS)]
    rows = [
        dataset.sequences(sequences_of_samples(step_samples, dataset.num_sequences, spec.training.seed))
        for step_samples in samples
    ]
    return batches, [np.concatenate([sequences.tokens, sequences.targets[:, -1:]], axis=1) for sequences in rows]


def compile_trainer_step(spec: TrainingJobSpec, layout: Layout, batches: list[Batch]) -> CompiledStep:
    """Return the trainer's compiled step on one device."""
    steps = StepPrograms(spec, build_mesh(jax.devices()[:1], layout))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    state = jax.jit(steps.init, out_shardings=shardings)()
    params = jax.tree.map(np.asarray, state.params)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert count == NUM_PARAMS, f"the model has {count:,} parameters"
    controls = steps.controls(Signal.NONE, spec.training.steps)
    train = jax.jit(steps.train, donate_argnums=0, out_shardings=(shardings, None))
    compiled = train.lower(state, batches[0], controls).compile()

    def step(number: int) -> jax.Array:
        nonlocal state
        state, metrics = compiled(state, batches[number], controls)
        loss: jax.Array = metrics.loss
        return loss

    return CompiledStep(step, params, compiled)


def make_steps(spec: TrainingJobSpec) -> tuple[Step, Step, dict[str, float]]:
    """Return the trainer's step, the hand-written step, and the FLOPs and bytes of both compiled programs."""
    batches, rows = read_batches(spec, SINGLE)
    trainer_step = compile_trainer_step(spec, SINGLE, batches)
    tokens = [jax.device_put(step_rows) for step_rows in rows]
    handwritten_state = handwritten.start(jax.tree.map(jax.device_put, trainer_step.params), shape_of(spec))
    reference = handwritten.make_step(shape_of(spec)).lower(handwritten_state, tokens[0]).compile()

    def train_handwritten_step(number: int) -> jax.Array:
        nonlocal handwritten_state
        handwritten_state, loss = reference(handwritten_state, tokens[number])
        return loss

    programs = (("ours", trainer_step.program), ("hand-written", reference))
    costs = {
        f"{name} {key}": float(program.cost_analysis()[key])
        for name, program in programs
        for key in ("flops", "bytes accessed")
    } | {
        f"{name} {key}": float(program.as_text().count(key))
        for name, program in programs
        for key in (" = ", " select(")
    }
    return trainer_step.step, train_handwritten_step, costs


def time_block(step: Step) -> float:
    """Return the seconds of `BLOCK_STEPS` steps."""
    start = time.perf_counter()
    for number in range(BLOCK_STEPS):
        loss = step(number)
    loss.block_until_ready()
    return time.perf_counter() - start


def time_pairs(
    trainer_step: Step, reference_step: Step, pairs: int, name: str, console: Console
) -> tuple[list[float], float]:
    """Return the speedup of the step over the reference in each pair of blocks, and its median seconds."""
    ratios, step_seconds = [], []
    for pair in track(range(pairs), description=name, console=console):
        order = (trainer_step, reference_step) if pair % 2 == 0 else (reference_step, trainer_step)
        seconds = {step: time_block(step) for step in order}
        ratios.append(seconds[reference_step] / seconds[trainer_step])
        step_seconds.append(seconds[trainer_step] / BLOCK_STEPS)
    return ratios, statistics.median(step_seconds)


def measure_bare(console: Console) -> list[Figure]:
    """Return the figures of the bare step."""
    trainer_step, handwritten_step, costs = make_steps(TrainingJobSpec.model_validate(SPEC))
    difference = abs(float(trainer_step(0)) - float(handwritten_step(0)))
    assert difference < MAX_LOSS_DIFFERENCE, f"the losses of the first step differ by {difference}"
    ratios, seconds = time_pairs(trainer_step, handwritten_step, BARE_PAIRS, "bare step", console)
    names = {"flops": "FLOPs", "bytes accessed": "bytes", " = ": "instructions", " select(": "selects"}
    return [
        Figure("bare step: speed", statistics.median(ratios), "of hand-written", STEP_GOAL),
        Figure("bare step: slowest pair", min(ratios), "of hand-written", STEP_GOAL),
        Figure("bare step: fastest pair", max(ratios), "of hand-written", STEP_GOAL),
        Figure("bare step: seconds", seconds, "s", seconds),
        *(
            Figure(f"bare step: {name}", costs[f"ours {key}"], "", costs[f"hand-written {key}"])
            for key, name in names.items()
        ),
    ]


def time_run(folder: Path) -> float:
    """Return the seconds of the timed steps of `trainingjob run`."""
    manifest = {
        "apiVersion": "trainingjob.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "bench"},
        "spec": SPEC,
    }
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(manifest))
    command = [
        str(Path(sys.executable).with_name("trainingjob")),
        "run",
        str(job),
        "--fresh",
        "--dir",
        str(folder / "run"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    (path,) = (folder / "run").rglob("metrics.jsonl")
    times = {line["step"]: line["time"] for line in map(json.loads, path.read_text().splitlines()) if "loss" in line}
    seconds: float = times[LAST_TIMED] - times[FIRST_TIMED]
    return seconds


def time_handwritten() -> float:
    """Return the seconds of the timed steps of the hand-written loop, in a separate process."""
    command = [sys.executable, "-m", "e2e.benchmarks.trainer", "--handwritten"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout)


def train_handwritten() -> None:
    """Train the hand-written loop and print the seconds of the timed steps."""
    spec = TrainingJobSpec.model_validate(SPEC)
    _, step, _ = make_steps(spec)
    for number in range(1, LAST_TIMED + 1):
        step(number % BLOCK_STEPS).block_until_ready()
        if number == FIRST_TIMED:
            start = time.perf_counter()
    sys.stdout.write(f"{time.perf_counter() - start}\n")


def measure_loop(console: Console) -> list[Figure]:
    """Return the figures of the whole loop."""
    ratios = []
    for pair in track(range(LOOP_PAIRS), description="whole loop", console=console):
        with tempfile.TemporaryDirectory() as folder:
            if pair % 2 == 0:
                trainer_seconds, handwritten_seconds = time_run(Path(folder)), time_handwritten()
            else:
                handwritten_seconds, trainer_seconds = time_handwritten(), time_run(Path(folder))
        ratios.append(handwritten_seconds / trainer_seconds)
    return [
        Figure("whole loop: speed", statistics.median(ratios), "of hand-written", LOOP_GOAL),
        Figure("whole loop: slowest pair", min(ratios), "of hand-written", LOOP_GOAL),
        Figure("whole loop: fastest pair", max(ratios), "of hand-written", LOOP_GOAL),
    ]


def main() -> None:
    """Measure, print a table and write build/bench/trainer.json."""
    if "--handwritten" in sys.argv:
        train_handwritten()
        return
    console = Console()
    publish("trainer", [*measure_bare(console), *measure_loop(console)], console)


if __name__ == "__main__":
    main()
