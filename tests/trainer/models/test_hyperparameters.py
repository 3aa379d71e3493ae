"""Each number of a spec that shapes training does so: steps with other values are those of the reference."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.numeric_fields import NOT_OF_A_STEP, list_numeric_fields
from tests.support.trainer.reference import AdamW, Spikes, learning_rate, row_losses
from tests.support.trainer.reference_gradients import find_gradients
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import flat, make_index, numpy_tree, sequences_of, spec_with
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Signal
from trainingjob_trainer.step import StepPrograms

NEAR = 1e-3
"""How far float32 may be from the reference, relative to a tensor's norm."""
FAR = 20 * NEAR
"""How far the values of a field must be from each other, so that the test tells them apart."""
ROUTED = {"model__experts": {"count": 4, "perToken": 2}}
WATCHED = {"protection__spikes": {"window": 4}, "training__steps": 12}
OFTEN = {"protection__spikes": {"sigma": 0.1, "window": 4}, "training__steps": 12}
VARIED: dict[str, tuple[Any, dict[str, Any]]] = {
    "model.vocabSize": (264, {}),
    "model.embedDim": (12, {}),
    "model.mlpDim": (20, {}),
    "model.numLayers": (1, {}),
    "model.numHeads": (4, {}),
    "model.numKvHeads": (2, {}),
    "model.headDim": (6, {}),
    "model.rope.theta": (30.0, {}),
    "model.norm.epsilon": (0.05, {}),
    "model.experts.count": (3, ROUTED),
    "model.experts.perToken": (1, ROUTED),
    "model.experts.weightScale": (2.5, ROUTED),
    "model.experts.capacityFactor": (0.5, ROUTED),
    "model.experts.groupLength": (4, ROUTED),
    "model.experts.shared": (1, ROUTED),
    "model.experts.balance.lossWeight": (0.8, ROUTED),
    "training.steps": (9, {}),
    "training.globalBatchSize": (3, {}),
    "training.sequenceLength": (12, {}),
    "optimizer.learningRate": (0.03, {}),
    "optimizer.adamw.beta1": (0.5, {}),
    "optimizer.adamw.beta2": (0.6, {}),
    "optimizer.adamw.epsilon": (0.05, {}),
    "optimizer.weightDecay.rate": (2.0, {}),
    "optimizer.clipNorm": (0.2, {}),
    "optimizer.adamw.epsilonRoot": (0.01, {}),
    "optimizer.clipValue": (0.001, {}),
    "optimizer.clipUpdateRms": (0.3, {}),
    "schedule.warmup": (3, {}),
    "schedule.finalFraction": (0.7, {}),
    "protection.spikes.sigma": (0.1, WATCHED),
    "protection.spikes.window": (2, OFTEN),
}
"""By field a value that is neither its default nor that of the other cases, and what else the spec has."""
AT_THE_START = {"model.init.std", "model.init.matrices.std", "model.init.matrices.scale", "training.seed"}
"""Numeric fields that shape the first state alone, each with a test below."""

OF_PUBLISHED_MODELS = re.compile(
    r"model\.(attention|latentAttention|mlp\.|maxPositions|layers|rope\.(fraction|scaling)|embeddingScale|logits"
    r"|experts\.(mlpDim|groups|balance\.biasRate))"
)
"""Options of families other than Llama, which the tests of published models compare with transformers."""


@dataclass(frozen=True)
class Course:
    """Some steps of training: their measures, and what they left behind."""

    measured: list[list[float]]
    """Of each step loss, gradient norm, learning rate, and whether its update was skipped."""
    tensors: dict[str, np.ndarray]
    """Parameters and both moments."""

    def distance(self, other: "Course") -> float:
        """Return how far this is from another course, at the worst place."""
        ours, theirs = np.array(self.measured), np.array(other.measured)
        if ours.shape != theirs.shape or not self.has_shapes_of(other):
            return np.inf
        worst = float(np.max(np.abs(ours - theirs) / (np.abs(theirs) + 1e-12)))
        return max(worst, *(_distance(self.tensors[name], other.tensors[name]) for name in other.tensors))

    def has_shapes_of(self, other: "Course") -> bool:
        return {k: v.shape for k, v in self.tensors.items()} == {k: v.shape for k, v in other.tensors.items()}


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def describe(changes: dict[str, Any], path: str = "", value: Any = None) -> TrainingJobSpec:
    model = {"vocabSize": 260, "embedDim": 8, "mlpDim": 16, "numLayers": 2, "numHeads": 2, "numKvHeads": 1}
    values = {
        "model": model | {"headDim": 4},
        "training__globalBatchSize": 4,
        "training__sequenceLength": 8,
        "schedule__type": "linear",
        **changes,
    }
    spec = spec_with(**values).model_dump(mode="json", by_alias=True)
    *parents, last = path.split(".")
    place = spec
    for parent in parents:
        place[parent] = place[parent] or {}
        place = place[parent]
    if path:
        place[last] = value
    return TrainingJobSpec.model_validate(spec)


class Training:
    """The same steps twice: the trainer's, and the reference's."""

    def __init__(self, spec: TrainingJobSpec) -> None:
        self.spec = spec
        rows = spec.training.global_batch_size
        layout = make_layout(devices_per_host=1, ici=AxisDegrees(), rows_per_shard=rows)
        self.steps = StepPrograms(spec, build_mesh(jax.devices()[:1], layout))
        batches = BatchLoader(layout, self.steps.batch_sharding, rows)
        number = 9 if spec.protection.spikes else 3
        self.batches = [batches.train_batch(make_index(spec), step, 0) for step in range(1, number + 1)]
        rng = np.random.default_rng(0)
        self.params = jax.tree.map(lambda leaf: self._draw(rng, leaf.shape), self.steps.state_shapes.params)

    @staticmethod
    def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return values by which every number matters: larger than at the start of training, scales unlike 1."""
        return (0.5 * rng.standard_normal(shape) + 0.2).astype(np.float32)

    def train(self) -> Course:
        step = jax.jit(self.steps.train)
        state = self.steps._initial_state(jax.tree.map(jnp.asarray, self.params))
        measured = []
        for batch in self.batches:
            before = int(state.skipped)
            state, found = step(state, batch, self.steps.controls(Signal.NONE, self.spec.training.steps))
            seen = (found.loss, found.grad_norm, found.learning_rate, int(state.skipped) - before)
            measured.append([float(one) for one in seen])
        adam = state.opt[1]
        return Course(measured, {**_named("params", state.params), **_named("m", adam.mu), **_named("v", adam.nu)})

    def follow_the_reference(self) -> Course:
        params, structure = flat(self.params), jax.tree.structure(self.params)
        adam, spikes = AdamW(self.spec), Spikes(self.spec)
        measured = []
        for number, batch in enumerate(self.batches, start=1):
            tree = jax.tree.unflatten(structure, [np.asarray(leaf, np.float32) for leaf in params.values()])
            loss, gradients = find_gradients(self.spec, tree, sequences_of(batch)[0, 0])
            grads = flat(gradients)
            norm = float(np.sqrt(sum((grad**2).sum() for grad in grads.values())))
            rate = learning_rate(self.spec, number)
            is_spike = spikes.take((loss, norm))
            measured.append([loss, norm, rate, float(is_spike)])
            if not is_spike:
                params = adam.update(params, grads, rate)
        trees = {"params": params, "m": adam.m, "v": adam.v}
        return Course(measured, {f"{kind} {name}": leaf for kind, tree in trees.items() for name, leaf in tree.items()})

    def forward_loss(self) -> float:
        """Return the loss of the first batch by the NumPy reference."""
        rows = sequences_of(self.batches[0])[0, 0]
        return float(np.mean([row_losses(self.spec, numpy_tree(self.params), row) for row in rows]))


def _named(kind: str, tree: Any) -> dict[str, np.ndarray]:
    return {f"{kind} {name}": leaf for name, leaf in flat(tree).items()}


@cache
def usual_course(written: str) -> Course:
    return Training(TrainingJobSpec.model_validate_json(written)).follow_the_reference()


def test_every_numeric_field_is_varied_or_has_a_reason() -> None:
    fields = [field for field in list_numeric_fields() if not OF_PUBLISHED_MODELS.match(field)]

    assert sorted(fields) == sorted([*VARIED, *AT_THE_START, *NOT_OF_A_STEP])


@pytest.mark.thorough
@each("field", {field: field for field in VARIED}, *list(VARIED)[::2])
def test_a_number_shapes_training_as_in_the_reference(field: str) -> None:
    value, others = VARIED[field]
    training = Training(describe(others, field, value))

    want = training.follow_the_reference()

    assert want.measured[0][0] == pytest.approx(training.forward_loss(), rel=1e-5)
    assert want.distance(usual_course(describe(others).model_dump_json())) > FAR
    assert training.train().distance(want) < NEAR


@pytest.mark.thorough
def test_heads_that_are_unset_train_as_in_the_reference() -> None:
    training = Training(
        describe({}, "model", {"vocabSize": 260, "embedDim": 8, "mlpDim": 16, "numLayers": 2, "numHeads": 2})
    )

    want = training.follow_the_reference()

    assert want.measured[0][0] == pytest.approx(training.forward_loss(), rel=1e-5)
    assert training.train().distance(want) < NEAR


@pytest.mark.thorough
def test_gradients_are_not_clipped_with_zero() -> None:
    clipped = describe({}, "optimizer.clipNorm", 0.2)
    training = Training(describe({}, "optimizer.clipNorm", 0))

    want = training.follow_the_reference()

    assert want.distance(usual_course(clipped.model_dump_json())) > FAR
    assert training.train().distance(want) < NEAR


@pytest.mark.thorough
@pytest.mark.parametrize("exclude", [["norm", "embedding", "expert"], ["matrix", "router"]], ids=str)
def test_excluded_kinds_of_tensors_have_no_weight_decay_as_in_the_reference(exclude: list[str]) -> None:
    strong = {**ROUTED, "optimizer__weightDecay": {"rate": 2.0}}
    training = Training(describe(strong, "optimizer.weightDecay.exclude", exclude))

    want = training.follow_the_reference()

    assert want.distance(usual_course(describe(strong).model_dump_json())) > FAR
    assert training.train().distance(want) < NEAR


@pytest.mark.parametrize("scale", [0.02, 0.3])
def test_a_table_begins_with_the_scale_of_the_spec_and_matrices_with_that_of_their_inputs(scale: float) -> None:
    model = {"model__embedDim": 32, "model__mlpDim": 64, "model__init": {"std": scale}}
    params = Training(spec_with(**model)).steps.init().params

    mlp = params["layers"]["mlp"]
    found = [float(jnp.std(leaf)) for leaf in (params["embedding"], params["head"], mlp["gate"], mlp["down"])]
    assert found == pytest.approx([scale, 32**-0.5, 32**-0.5, 64**-0.5], rel=0.03)


@pytest.mark.parametrize(
    ("matrices", "want"),
    [
        ({"scale": 0.25}, [0.5 * 32**-0.5, 0.5 * 32**-0.5, 0.5 * 64**-0.5]),
        ({"std": 0.02}, [0.02, 0.02, 0.02]),
        ({"std": 0.02, "scaleByDepth": True}, [0.02, 0.02, 0.02 * 4**-0.5]),
    ],
    ids=str,
)
def test_matrices_begin_with_the_distribution_of_the_spec(matrices: dict[str, Any], want: list[float]) -> None:
    model = {"model__embedDim": 32, "model__mlpDim": 64, "model__numLayers": 2, "model__init": {"matrices": matrices}}
    params = Training(spec_with(**model)).steps.init().params

    mlp = params["layers"]["mlp"]
    assert [float(jnp.std(leaf)) for leaf in (params["head"], mlp["gate"], mlp["down"])] == pytest.approx(
        want, rel=0.03
    )


def test_the_first_state_follows_from_the_seed() -> None:
    one, other = (flat(Training(describe({"training__seed": seed})).steps.init().params) for seed in (0, 1))

    assert not (one["['embedding']"] == other["['embedding']"]).any()
