"""Distillation: loss, gradient and metrics are those of each sequence alone, in NumPy, from both models' logits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.distillation import TEACHER, distillation
from tests.support.trainer.distillation_checks import check_equal_steps, check_first_step
from tests.support.trainer.reference import row_logits
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import BATCH, NUM_STEPS, ONE, Run, flat, numpy_tree, sequences_of, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.distillation import Distill
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import JobIdentity, Layout, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.objectives.distill import loss_of_step

RATE = 1.0
WEIGHT, TEMPERATURE = 0.3, 2.0


def changes_with(**distill: Any) -> dict[str, Any]:
    return {
        "objective": distillation(**{"weight": WEIGHT, "temperature": TEMPERATURE} | distill),
        "model__init": {"std": 0.3},
        "optimizer": {"type": "sgd", "learningRate": RATE, "clipNorm": 0, "weightDecay": {"rate": 0}},
        "schedule__type": "constant",
    }


CHANGES = changes_with()


def softmax(logits: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def losses_of_row(spec: TrainingJobSpec, params: Any, teacher: Any, row: np.ndarray) -> np.ndarray:
    """Return cross-entropy and divergence of each prediction of a row, float64 [2, L]."""
    described = describe_teacher(spec)
    assert described
    own, taught = row_logits(spec, params, row[:-1]), row_logits(described, teacher, row[:-1])
    p, q = softmax(taught / TEMPERATURE), softmax(own / TEMPERATURE)
    cross_entropy = -np.log(softmax(own)[np.arange(len(own)), row[1:]])
    return np.stack([cross_entropy, np.sum(p * np.log(p / q), axis=-1)])


def mean_losses(run: Run, params: Any, weights: np.ndarray | None = None) -> tuple[float, float, float]:
    """Return the loss, and the means of its cross-entropy and divergence, of the first batch."""
    rows, teacher = sequences_of(run.batch(1)).reshape(BATCH, -1), numpy_tree(run.teacher)
    found = np.stack([losses_of_row(run.spec, params, teacher, row) for row in rows])
    shares = np.ones((BATCH, rows.shape[1] - 1)) if weights is None else weights
    cross_entropy, divergence = np.sum(found * shares[:, None], axis=(0, 2)) / shares.sum()
    return (1 - WEIGHT) * cross_entropy + WEIGHT * TEMPERATURE**2 * divergence, cross_entropy, divergence


CHUNKS: dict[str, dict[str, Any]] = {"whole logits": {}, "chunks": {"memory__lossChunks": 3}}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", CHUNKS.values(), ids=CHUNKS)
def test_loss_and_gradient_are_those_of_the_rows_alone(changes: dict[str, Any]) -> None:
    run = Run(spec_with(**CHANGES | changes), ONE)
    *_, divergence = mean_losses(run, numpy_tree(run.state.params))
    assert divergence > 0.05, "the models must differ"
    check_first_step(run, mean_losses, RATE)


@pytest.mark.thorough
@each("layout", LAYOUTS, "context 4, tensor 2, accumulation 2")
def test_the_loss_does_not_depend_on_the_layout(layout: Layout) -> None:
    check_equal(layout)


SPLITS: dict[str, tuple[str, dict[str, Any]]] = {
    "chunks": ("data 2, fsdp 2, tensor 2, accumulation 2", {"memory": {"lossChunks": 4}}),
    "chunks on stages": ("2 stages, fsdp 2, tensor 2, 4 microbatches", {"memory": {"lossChunks": 4}}),
    "circular": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "circular"}, "model__numLayers": 4},
    ),
    "alternating": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}},
    ),
    "alternating, chunks": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}, "memory": {"lossChunks": 4}},
    ),
    "ring": ("context 4, tensor 2, accumulation 2", {"parallelism__context": {"exchange": "ring"}}),
    "sharded stream": (
        "data 2, fsdp 2, tensor 2, accumulation 2",
        {"parallelism__shardStreamOverTensor": True, "memory": {"lossChunks": 4}},
    ),
    "experts": (
        "fsdp over slices, 6 shards, accumulation 2, padding",
        {"model__experts": {"count": 4, "perToken": 2}},
    ),
    "z-loss": ("fsdp 8", {"objective__zLoss": 0.01, "memory": {"lossChunks": 2}}),
}


@pytest.mark.thorough
@each("split", SPLITS, "chunks", "experts")
def test_splits_change_no_loss(split: tuple[str, dict[str, Any]]) -> None:
    name, changes = split
    check_equal(LAYOUTS[name], **changes)


def check_equal(layout: Layout, **changes: Any) -> None:
    """Check that a layout and a spec change neither losses nor metrics of one device."""
    of_model = ("model", "objective")
    plain = {name: value for name, value in changes.items() if name.startswith(of_model)}
    alone = Run(spec_with(**CHANGES | plain, optimizer__learningRate=0.1), ONE)
    spread = Run(spec_with(**CHANGES | changes, optimizer__learningRate=0.1), layout)
    check_equal_steps(alone, spread)


def scheduled(shape: str, progress: float, start: float, end: float) -> float:
    """Return the value of a schedule. Written again."""
    return start + (end - start) * (progress if shape == "linear" else (1 - math.cos(math.pi * progress)) / 2)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_weight_and_temperature_change_from_the_first_to_the_last_step(shape: str) -> None:
    schedules = {"weightSchedule": {"end": 0.9, "shape": shape}, "temperatureSchedule": {"end": 4, "shape": shape}}
    run = Run(spec_with(**changes_with(**schedules), optimizer__learningRate=0.1), ONE)

    for number, measures in enumerate(run.train()):
        progress = number / (NUM_STEPS - 1)
        weight, temperature = scheduled(shape, progress, WEIGHT, 0.9), scheduled(shape, progress, TEMPERATURE, 4)
        found = {name: float(metric) for name, metric in measures.objective.items()}
        want = (1 - weight) * found["cross_entropy"] + weight * temperature**2 * found["teacher_divergence"]
        assert float(measures.loss) == pytest.approx(want, abs=1e-5)


def test_a_schedule_starts_and_ends_with_its_numbers() -> None:
    options = Distill.model_validate(
        {"teacher": TEACHER, "weight": 0.5, "temperature": 2, "weightSchedule": {"end": 0.1}}
    )
    first, last, later = (loss_of_step(options, jnp.asarray(step), jnp.asarray(6)).soft for step in (1, 6, 9))
    only = loss_of_step(options, jnp.asarray(1), jnp.asarray(1)).soft

    assert [float(one.weight) for one in (first, last, later, only)] == pytest.approx([0.5, 0.1, 0.1, 0.5])
    assert {float(one.temperature) for one in (first, last, later, only)} == {2.0}


@pytest.mark.thorough
@each("changes", CHUNKS, "chunks")
def test_a_weight_of_zero_is_the_next_token(changes: dict[str, Any]) -> None:
    plain = Run(spec_with(**changes_with() | changes | {"objective": {"zLoss": 0.01}}), ONE)
    objective = changes_with(weight=0.0)["objective"] | {"zLoss": 0.01}
    distilling = Run(spec_with(**changes_with() | changes | {"objective": objective}), ONE)

    for want, found in zip(plain.train(2), distilling.train(2), strict=True):
        assert float(found.loss) == pytest.approx(float(want.loss), abs=1e-5)
        assert float(found.grad_norm) == pytest.approx(float(want.grad_norm), abs=1e-4)
        assert float(found.objective["z_loss"]) == pytest.approx(float(want.objective["z_loss"]), abs=1e-5)


@pytest.mark.thorough
def test_a_student_like_its_teacher_has_no_divergence() -> None:
    same = {"teacher": TEACHER | {"model": {**model_of_student(), "init": {"std": 0.3}}}, "weight": 1.0}
    run = Run(spec_with(**changes_with(**same)), ONE)
    run.teacher = run.state.params

    before = flat(run.state.params)
    run.state = jax.tree.map(lambda leaf: leaf.copy(), run.state)
    (measures,) = run.train(1)

    assert float(measures.loss) == pytest.approx(0, abs=1e-6)
    assert float(measures.grad_norm) == pytest.approx(0, abs=1e-5)
    assert all(np.allclose(before[name], leaf, atol=1e-5) for name, leaf in flat(run.state.params).items())


def model_of_student() -> dict[str, Any]:
    return spec_with().model.model_dump(by_alias=True, exclude_defaults=True)


@pytest.mark.thorough
def test_the_student_learns_from_the_teacher_alone() -> None:
    run = Run(spec_with(**changes_with(weight=1.0) | {"optimizer": {"learningRate": 0.03}}), ONE)
    before = flat(run.teacher)
    first = run.batch(1)
    run.batch = lambda _: first  # type: ignore[method-assign]

    measures = list(run.train(12))

    divergences = [float(one.objective["teacher_divergence"]) for one in measures]
    assert divergences[-1] < 0.7 * divergences[0]
    assert all(np.array_equal(before[name], leaf) for name, leaf in flat(run.teacher).items())


@pytest.mark.thorough
def test_an_evaluation_reports_cross_entropy_and_divergence() -> None:
    run = Run(spec_with(**CHANGES), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"])
    _, cross_entropy, divergence = mean_losses(run, numpy_tree(run.state.params))

    sums = run.score(run.state.params, run.batch(1))

    assert sums.divergence is not None
    assert float(sums.loss / sums.weight) == pytest.approx(cross_entropy, abs=1e-4)
    assert float(sums.divergence / sums.weight) == pytest.approx(divergence, abs=1e-4)


@pytest.mark.thorough
def test_dropout_changes_the_student_and_not_its_teacher() -> None:
    plain, dropping = (
        Run(spec_with(**CHANGES, model__dropout={"residual": rate}), ONE).train(1) for rate in (0.0, 0.5)
    )

    want, found = next(plain).objective, next(dropping).objective

    assert float(found["cross_entropy"]) != pytest.approx(float(want["cross_entropy"]), abs=1e-3)


PROGRAMS: dict[str, dict[str, Any]] = {
    "whole logits": {},
    "chunks": {"memory__lossChunks": 4},
    "adapters": {"lora": {"rank": 2, "alpha": 4, "targets": ["*.attention.query"]}},
}


@pytest.mark.thorough
@each("changes", PROGRAMS, "chunks")
def test_a_compiled_step_has_the_flops_of_the_plan(changes: dict[str, Any]) -> None:
    spec, layout = spec_with(**CHANGES | changes), make_layout(accumulation=2)
    config = RunConfig(
        job=JobIdentity(name="tiny", namespace="", uid=""), spec=spec, accelerator_platform="cpu", layouts=(layout,)
    )

    assert compile_step(config, layout).flops == count_step_flops(describe_workload(spec), layout)


LARGER = {"vocabSize": 4096, "embedDim": 256, "mlpDim": 768, "numLayers": 4, "numHeads": 4}
LARGER_TEACHER = {"vocabSize": 4096, "embedDim": 512, "mlpDim": 1536, "numLayers": 8, "numHeads": 8}


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 8])
def test_the_plan_counts_the_memory_of_both_models(chunks: int) -> None:
    teacher = TEACHER | {"model": LARGER_TEACHER}
    changes = {"model": LARGER, "memory__lossChunks": chunks, "objective": distillation(teacher=teacher)}
    spec = spec_with(**changes, training__sequenceLength=512)
    layout = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=8), rows_per_shard=1)
    config = RunConfig(
        job=JobIdentity(name="tiny", namespace="", uid=""), spec=spec, accelerator_platform="cpu", layouts=(layout,)
    )

    compiled = compile_step(config, layout)

    device = estimate_device_memory(spec, combine_degrees(layout.ici, layout.dcn))
    plan = device.estimate(1, 1, keeps_embedding=False)
    assert compiled.arguments == pytest.approx(plan.params + plan.optimizer, rel=0.01)
    assert 1 < (plan.gradients + plan.activations + plan.temporaries) / compiled.temporaries < 1.3
