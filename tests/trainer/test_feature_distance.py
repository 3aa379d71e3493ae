"""Distances of hidden states from a teacher's: loss and gradient are those of each sequence alone, in NumPy."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.distillation import TEACHER
from tests.support.trainer.numeric_gradients import check_gradients
from tests.support.trainer.reference import run_layers
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import BATCH, NUM_STEPS, ONE, Run, numpy_tree, sequences_of, spec_with
from tests.trainer.test_distillation import RATE, changes_with, check_equal, mean_losses
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step

PAIRS = ((1, 3), (2, 4))
FEATURE_WEIGHT = 0.7
SAME_WIDTH = TEACHER | {"model": TEACHER["model"] | {"embedDim": spec_with().model.embed_dim}}


def changes_of(loss: str = "cosine", **options: Any) -> dict[str, Any]:
    layers = [{"student": own, "teacher": other} for own, other in PAIRS]
    features = {"layers": layers, "loss": loss, "weight": FEATURE_WEIGHT, **options}
    return changes_with(teacher=SAME_WIDTH, features=features)


def distance_of(spec: TrainingJobSpec, own: Any, taught: Any, row: np.ndarray) -> float:
    """Return the mean over the tokens of a row, and over the pairs, of the distance of hidden states."""
    described = describe_teacher(spec)
    assert described
    assert spec.objective
    assert spec.objective.distill
    assert spec.objective.distill.features
    found = []
    for pair in PAIRS:
        a, b = (
            run_layers(one, params["embedding"][row[:-1]], params["layers"], layer)[0]
            for one, params, layer in zip((spec, described), (own, taught), pair, strict=True)
        )
        if spec.objective.distill.features.loss == "cosine":
            cosines = np.sum(a * b, axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
            found.append(np.mean(1 - cosines))
        else:
            found.append(np.mean((a - b) ** 2))
    return float(np.mean(found))


def mean_distance(run: Run, params: Any) -> float:
    rows, teacher = sequences_of(run.batch(1)).reshape(BATCH, -1), numpy_tree(run.teacher)
    return float(np.mean([distance_of(run.spec, params, teacher, row) for row in rows]))


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["cosine", "squaredError"])
def test_loss_and_gradient_are_those_of_the_rows_alone(loss: str) -> None:
    run = Run(spec_with(**changes_of(loss)), ONE)
    before = numpy_tree(run.state.params)

    def total(params: Any) -> float:
        return mean_losses(run, params)[0] + FEATURE_WEIGHT * mean_distance(run, params)

    want, distance = total(before), mean_distance(run, before)
    (measures,) = run.train(1)

    assert distance > 0.05, "the models must differ"
    assert float(measures.loss) == pytest.approx(want, abs=1e-4)
    assert float(measures.objective["feature_loss"]) == pytest.approx(distance, abs=1e-4)
    gradients = jax.tree.map(lambda old, new: (old - new) / RATE, before, numpy_tree(run.state.params))
    first = run.batch(1)
    run.batch = lambda _: first  # type: ignore[method-assign]
    check_gradients(total, before, gradients, np.random.default_rng(3))


DEEP = {"model__numLayers": 4}
ALTERNATING = {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}}
SPLITS: dict[str, tuple[str, dict[str, Any]]] = {
    "stages": ("2 stages, fsdp 2, tensor 2, 4 microbatches", {}),
    "circular stages": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "circular"}, **DEEP},
    ),
    "alternating stages": ("2 stages, fsdp 2, tensor 2, 4 microbatches", ALTERNATING | DEEP),
    "alternating stages, ring, chunks": (
        "data 2 over slices, 2 stages, context 2, accumulation 2",
        ALTERNATING | {"parallelism__context": {"exchange": "ring"}, "memory": {"lossChunks": 4}},
    ),
    "alternating stages, experts, sharded stream": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        ALTERNATING
        | {
            "parallelism__shardStreamOverTensor": True,
            "memory": {"remat": "full"},
            "model__experts": {"count": 4, "perToken": 2},
        },
    ),
    "ring": ("context 4, tensor 2, accumulation 2", {"parallelism__context": {"exchange": "ring"}}),
    "sharded stream": (
        "data 2, fsdp 2, tensor 2, accumulation 2",
        {"parallelism__shardStreamOverTensor": True, "memory": {"lossChunks": 4}},
    ),
    "experts and padding": (
        "fsdp over slices, 6 shards, accumulation 2, padding",
        {"model__experts": {"count": 4, "perToken": 2}},
    ),
    "remat": ("fsdp 8", {"memory": {"remat": "full"}}),
}


@pytest.mark.thorough
@each("split", SPLITS, "stages", "alternating stages, experts, sharded stream")
def test_splits_change_no_loss(split: tuple[str, dict[str, Any]]) -> None:
    name, changes = split
    check_equal(LAYOUTS[name], **changes_of() | changes)


@pytest.mark.thorough
def test_the_weight_changes_from_the_first_to_the_last_step() -> None:
    changes = changes_of(weightSchedule={"end": 0.1}) | {"optimizer": {"learningRate": 0.1}}
    run = Run(spec_with(**changes), ONE)

    for number, measures in enumerate(run.train()):
        weight = FEATURE_WEIGHT + (0.1 - FEATURE_WEIGHT) * number / (NUM_STEPS - 1)
        found = {name: float(metric) for name, metric in measures.objective.items()}
        soft = 0.7 * found["cross_entropy"] + 0.3 * 4 * found["teacher_divergence"]
        assert float(measures.loss) == pytest.approx(soft + weight * found["feature_loss"], abs=1e-5)


@pytest.mark.thorough
def test_states_like_those_of_the_teacher_have_no_distance() -> None:
    model = spec_with().model.model_dump(by_alias=True, exclude_defaults=True)
    layers = [{"student": number, "teacher": number} for number in (1, 2)]
    run = Run(
        spec_with(**changes_with(teacher=SAME_WIDTH | {"model": model}, weight=1.0, features={"layers": layers})), ONE
    )
    run.teacher = jax.tree.map(lambda leaf: leaf.copy(), run.state.params)

    (measures,) = run.train(1)

    assert float(measures.loss) == pytest.approx(0, abs=1e-5)
    assert float(measures.grad_norm) == pytest.approx(0, abs=1e-4)


LARGER = {"vocabSize": 512, "embedDim": 512, "mlpDim": 768, "numLayers": 4, "numHeads": 4}


@pytest.mark.slow
def test_the_plan_counts_the_memory_of_the_hidden_states() -> None:
    layout = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=8), rows_per_shard=2)
    found, planned = [], []
    for number in (0, 4):
        layers = [{"student": layer + 1, "teacher": layer + 1} for layer in range(number)]
        features = {"features": {"layers": layers}} if layers else {}
        changes = changes_with(teacher=SAME_WIDTH | {"model": LARGER}, **features)
        spec = spec_with(**changes | {"model": LARGER, "memory": {"remat": "full"}}, training__sequenceLength=1024)
        identity = JobIdentity(name="tiny", namespace="", uid="")
        config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))
        compiled = compile_step(config, layout)
        assert compiled.flops == count_step_flops(describe_workload(spec), layout)
        found.append(compiled.temporaries)
        device = estimate_device_memory(spec, combine_degrees(layout.ici, layout.dcn))
        plan = device.estimate(2, 1, keeps_embedding=False)
        planned.append(plan.activations + plan.temporaries)

    states = 2 * 1024 * 512 * 4
    assert planned[1] - planned[0] == 4 * 2 * states
    assert found[1] - found[0] == pytest.approx(4 * 2 * states, rel=0.05)
