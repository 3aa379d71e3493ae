"""Error of bfloat16 gradients relative to float32, per tensor and on every layout.

Token frequencies follow Zipf's law, as in language, so that a few rows of the embedding table accumulate most of a
batch.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jax
import numpy as np
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Signal, State
from trainingjob_trainer.step import StepPrograms

type Section = dict[str, Any]
type Gradients = dict[str, np.ndarray]

BATCH = 16
MAX_ERROR = 0.035
"""Largest error of a tensor's gradient relative to its float32 norm; bfloat16 matmuls alone cause it."""


def layout(ici: Section, dcn: Section | None = None, *, accumulation: int = 1, microbatches: int = 1) -> Layout:
    """Return a layout over which a batch is sharded, with padding where it does not divide."""
    inner, outer = AxisDegrees.model_validate(ici), AxisDegrees.model_validate(dcn or {})
    slices = int(np.prod([degree for _, degree in outer.items()]))
    shards = int(np.prod([getattr(axes, axis) for axes in (inner, outer) for axis in ("data", "fsdp", "expert")]))
    places = shards * accumulation * microbatches
    rows = -(-BATCH // places)
    return Layout(
        num_slices=slices,
        hosts_per_slice=1,
        devices_per_host=int(np.prod([degree for _, degree in inner.items()])),
        ici=inner,
        dcn=outer,
        rows_per_shard=rows,
        accumulation=accumulation,
        microbatches=microbatches,
        padding_rows=rows * places - BATCH,
    )


SINGLE_DEVICE = layout({})
LAYOUTS: dict[str, Layout] = {
    "1 microstep": SINGLE_DEVICE,
    "2 microsteps": layout({}, accumulation=2),
    "4 microsteps": layout({}, accumulation=4),
    "16 microsteps": layout({}, accumulation=16),
    "fsdp 8": layout({"fsdp": 8}),
    "data 8": layout({"data": 8}),
    "data 2 over slices, fsdp 4": layout({"fsdp": 4}, {"data": 2}),
    "fsdp 2 over slices, context 2": layout({"context": 2}, {"fsdp": 2}),
    "data 2, fsdp 2, tensor 2, 2 microsteps": layout({"data": 2, "fsdp": 2, "tensor": 2}, accumulation=2),
    "fsdp 2, context 4, 2 microsteps": layout({"fsdp": 2, "context": 4}, accumulation=2),
    "data 2 over slices, fsdp 2, context 2": layout({"fsdp": 2, "context": 2}, {"data": 2}),
    "2 stages, fsdp 2, tensor 2, 4 microbatches": layout({"stage": 2, "fsdp": 2, "tensor": 2}, microbatches=4),
    "2 stages, 16 microbatches": layout({"stage": 2}, microbatches=16),
    "data 2 over slices, 2 stages, context 2": layout({"stage": 2, "context": 2}, {"data": 2}, microbatches=2),
    "6 shards, 2 microsteps, padding": layout({"data": 3}, {"fsdp": 2}, accumulation=2),
}
ALL_EXPERTS: Section = {"count": 4, "perToken": 4}
"""Every expert processes every token. With a choice, rounding alone would route tokens differently."""
ALTERNATING: Section = {"parallelism": {"pipeline": {"schedule": "oneForwardOneBackward"}}}
VARIANTS: dict[str, tuple[Section, Layout]] = {
    "tied embeddings": ({"model": {"tieEmbeddings": True}}, SINGLE_DEVICE),
    "tied embeddings, fsdp 2, tensor 2": ({"model": {"tieEmbeddings": True}}, layout({"fsdp": 2, "tensor": 2})),
    "tied embeddings, 2 stages": ({"model": {"tieEmbeddings": True}}, layout({"stage": 2}, microbatches=4)),
    "layers computed again": ({"memory": {"remat": "full"}}, layout({"fsdp": 2}, accumulation=2)),
    "optimizer over data": ({"parallelism": {"shardOptimizerOverData": True}}, layout({"data": 4})),
    "parameters in bfloat16": ({"precision": {"params": "bfloat16"}}, layout({"fsdp": 2}, accumulation=4)),
    "one forward one backward, 2 stages, fsdp 2, tensor 2": (
        ALTERNATING,
        layout({"stage": 2, "fsdp": 2, "tensor": 2}, microbatches=4),
    ),
    "one forward one backward, parameters in bfloat16, 16 microbatches": (
        ALTERNATING | {"precision": {"params": "bfloat16"}},
        layout({"stage": 2}, microbatches=16),
    ),
    "parameters in bfloat16, 16 microbatches": (
        {"precision": {"params": "bfloat16"}},
        layout({"stage": 2}, microbatches=16),
    ),
    "query-key norm, fsdp 2, tensor 2": (
        {"model": {"attention": {"queryKeyNorm": "perHead"}}},
        layout({"fsdp": 2, "tensor": 2}),
    ),
    "expert 4": ({"model": {"experts": ALL_EXPERTS}}, layout({"expert": 4})),
    "fsdp 2, expert 2, tensor 2": ({"model": {"experts": ALL_EXPERTS}}, layout({"fsdp": 2, "expert": 2, "tensor": 2})),
    "dropless, fsdp 2, expert 2, tensor 2": (
        {"model": {"experts": ALL_EXPERTS | {"dispatch": "dropless"}}},
        layout({"fsdp": 2, "expert": 2, "tensor": 2}),
    ),
    "data 2 over slices, 2 stages, expert 2": (
        {"model": {"experts": ALL_EXPERTS}},
        layout({"stage": 2, "expert": 2}, {"data": 2}, microbatches=2),
    ),
}
CASES: dict[str, tuple[Section, Layout]] = {name: ({}, where) for name, where in LAYOUTS.items()} | VARIANTS


def make_spec(changes: Section, compute: str, *, length: int, width: int) -> TrainingJobSpec:
    """Return the spec of a small model. After one step, its optimizer state is the gradient of that step."""
    spec: Section = {
        "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
        "model": {
            "vocabSize": 256,
            "embedDim": width,
            "mlpDim": 2 * width,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 2,
            "headDim": width // 4,
        },
        "data": {"train": [{"name": "text", "path": "/unused"}]},
        "training": {"steps": 1, "globalBatchSize": BATCH, "sequenceLength": length},
        "optimizer": {"learningRate": 0.001, "adamw": {"beta1": 0}, "clipNorm": 0},
        "precision": {},
        "checkpoint": {"uri": "/unused/here"},
    }
    for section, values in changes.items():
        spec[section] = spec.get(section, {}) | values
    spec["precision"]["compute"] = compute
    return TrainingJobSpec.model_validate(spec)


def draw_tokens(length: int, power: float = 1.0) -> np.ndarray:
    """Return the tokens of a batch; the n-th token has a frequency proportional to 1 / n ** power."""
    shares = 1 / np.arange(1, 257) ** power
    return np.random.default_rng(0).choice(256, BATCH * length + 1, p=shares / shares.sum()).astype(np.uint16)


def measure(spec: TrainingJobSpec, target_layout: Layout, tokens: np.ndarray) -> Gradients:
    """Return the gradient of each tensor from one compiled train step."""
    steps = StepPrograms(spec, build_mesh(jax.devices()[: target_layout.num_devices], target_layout))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    state: State = jax.device_put(_initial_state(spec.model_dump_json()), shardings)
    batch = BatchLoader(target_layout, steps.batch_sharding, BATCH).train_batch(
        TokenDataset("made up", tokens, spec.training.sequence_length), 1, 0
    )
    step = jax.jit(steps.train, donate_argnums=0, out_shardings=(shardings, None))
    after, _ = step(state, batch, steps.controls(Signal.NONE, spec.training.steps))
    leaves = jax.tree_util.tree_leaves_with_path(after.opt[1].mu)
    return {".".join(str(key.key) for key in path): np.asarray(leaf, np.float64) for path, leaf in leaves}


@cache
def _initial_state(written: str) -> State:
    spec = TrainingJobSpec.model_validate_json(written)
    state: State = jax.device_get(jax.jit(StepPrograms(spec, build_mesh(jax.devices()[:1], SINGLE_DEVICE)).init)())
    return state


def errors(found: Gradients, exact: Gradients) -> dict[str, float]:
    """Return the distance of each tensor from the exact one, relative to the exact one's norm."""
    return {name: float(np.linalg.norm(found[name] - exact[name]) / np.linalg.norm(exact[name])) for name in exact}


def run(cases: Mapping[str, tuple[Section, Layout]], *, length: int, width: int) -> Iterator[Figure]:
    """Yield each case's error against float32, and its distance from bfloat16 on one device without accumulation."""
    tokens = draw_tokens(length)

    @cache
    def measure_single_device(written: str) -> Gradients:
        return measure(TrainingJobSpec.model_validate_json(written), SINGLE_DEVICE, tokens)

    for name, (changes, case_layout) in cases.items():
        exact, near = (
            measure_single_device(make_spec(changes, compute, length=length, width=width).model_dump_json())
            for compute in ("float32", "bfloat16")
        )
        found = measure(make_spec(changes, "bfloat16", length=length, width=width), case_layout, tokens)
        exact_errors = errors(found, exact)
        yield Figure(f"{name}: embedding", exact_errors.pop("embedding"), "", MAX_ERROR)
        for tensor, error in exact_errors.items() if name == "1 microstep" else ():
            yield Figure(f"{name}: {tensor}", error, "", MAX_ERROR)
        yield Figure(f"{name}: worst other", max(exact_errors.values()), "", MAX_ERROR)
        differences = errors(found, near)
        yield Figure(f"{name}: embedding, from 1 microstep", differences.pop("embedding"), "", MAX_ERROR)
        yield Figure(f"{name}: worst other, from 1 microstep", max(differences.values()), "", MAX_ERROR)


def main(*name_parts: str) -> None:
    """Measure the cases whose names contain one of the arguments, or all cases."""
    jax.config.update("jax_num_cpu_devices", 8)
    cases = {name: case for name, case in CASES.items() if not name_parts or any(part in name for part in name_parts)}
    publish("gradients", list(run(cases, length=512, width=64)), Console())


if __name__ == "__main__":
    main(*sys.argv[1:])
