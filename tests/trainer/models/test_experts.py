"""Experts: the numbers of an independent reference, and the same ones on every mesh."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import run_row
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, numpy_tree, save_and_restore, sequences_of, spec_with
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.state import StepMetrics

WEIGHT = 0.1
TIGHT = {"count": 4, "perToken": 2, "capacityFactor": 0.75, "balance": {"lossWeight": WEIGHT}}
KINDS: dict[str, dict[str, Any]] = {
    "one of four, as in Switch": {"count": 4, "perToken": 1},
    "two of four, some dropped": TIGHT,
    "room for all": {"count": 4, "perToken": 2, "capacityFactor": 2},
    "weights that add up to 1": TIGHT | {"normalizeWeights": True},
    "sigmoids, scaled": TIGHT | {"scoring": "sigmoid", "normalizeWeights": True, "weightScale": 2.5},
    "sigmoids as they are": TIGHT | {"scoring": "sigmoid"},
    "groups of four tokens": TIGHT | {"groupLength": 4},
    "beside shared ones": TIGHT | {"shared": 2},
    "all": {"count": 2, "perToken": 2},
}


def spec_of(experts: dict[str, Any], **changes: Any) -> TrainingJobSpec:
    return spec_with(model__experts=experts, **changes)


def sharpen(run: Run) -> None:
    """Make the routers decided and uneven; initially they are uniform."""
    mlp = run.state.params["layers"]["mlp"]
    mlp["router"] = mlp["router"] * 8


def routing_of(metrics: StepMetrics) -> tuple[jax.Array, jax.Array]:
    """Return load-balancing loss and share dropped."""
    return metrics.objective["load_balance"], metrics.objective["dropped"]


@pytest.mark.thorough
@each("experts", KINDS, "two of four, some dropped")
def test_each_token_is_routed_as_in_the_reference(experts: dict[str, Any]) -> None:
    spec = spec_of(experts)
    run = Run(spec, ONE)
    sharpen(run)
    batch = run.batch(1)
    params = numpy_tree(run.state.params)

    total, weight = run.evaluate(run.state.params, batch)
    _, measures = run.step(run.state, batch, run.controls())

    rows = [run_row(spec, params, row) for row in sequences_of(batch)[0, 0]]
    printed = np.mean([routing for _, routing in rows], axis=(0, 1))
    assert float(total) == pytest.approx(np.sum([losses for losses, _ in rows]), rel=1e-5)
    assert float(measures.loss) == pytest.approx(float(total / weight), rel=1e-5)
    assert [float(value) for value in routing_of(measures)] == pytest.approx(printed.tolist(), rel=1e-4)


@pytest.mark.slow
def test_tokens_are_dropped_only_beyond_the_capacity() -> None:
    dropped = {}
    for name in ("two of four, some dropped", "room for all"):
        run = Run(spec_of(KINDS[name]), ONE)
        sharpen(run)
        dropped[name] = float(next(run.train(1)).objective["dropped"])

    assert dropped["room for all"] == 0
    assert dropped["two of four, some dropped"] > 0.2


LAYOUTS: dict[str, Layout] = {
    "expert 4": make_layout(devices_per_host=4, ici=AxisDegrees(expert=4), rows_per_shard=2),
    "fsdp 2, expert 2, tensor 2, accumulation 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(fsdp=2, expert=2, tensor=2), rows_per_shard=1, accumulation=2
    ),
    "data 2 over slices, expert 4": make_layout(
        num_slices=2, devices_per_host=4, ici=AxisDegrees(expert=4), dcn=AxisDegrees(data=2), rows_per_shard=1
    ),
    "expert 2, context 4": make_layout(
        devices_per_host=8, ici=AxisDegrees(expert=2, context=4), rows_per_shard=2, accumulation=2
    ),
    "data 2 over slices, 2 stages, expert 2, accumulation 2": make_layout(
        num_slices=2,
        devices_per_host=4,
        ici=AxisDegrees(stage=2, expert=2),
        dcn=AxisDegrees(data=2),
        rows_per_shard=1,
        microbatches=2,
    ),
    "data 3, expert 2, accumulation 2, padding": make_layout(
        devices_per_host=6, ici=AxisDegrees(data=3, expert=2), rows_per_shard=1, accumulation=2, padding_rows=4
    ),
}
SPEC = spec_of(TIGHT | {"groupLength": 4, "shared": 1})


def curve(spec: TrainingJobSpec, layout: Layout) -> list[list[float]]:
    """Return loss, load-balancing loss and share dropped of each step."""
    return [[float(one.loss), *map(float, routing_of(one)), float(one.grad_norm)] for one in Run(spec, layout).train()]


@cache
def plain_curve() -> list[list[float]]:
    return curve(SPEC, ONE)


@each("layout", LAYOUTS)
def test_the_curves_do_not_depend_on_the_layout(layout: Layout) -> None:
    np.testing.assert_allclose(curve(SPEC, layout), plain_curve(), atol=2e-4)


@pytest.mark.slow
def test_state_continues_over_another_mesh(tmp_path: Path) -> None:
    saving, going_on = Run(SPEC, LAYOUTS["expert 4"]), Run(SPEC, LAYOUTS["expert 2, context 4"])
    list(saving.train(3))

    going_on.state = save_and_restore(tmp_path, saving.state, going_on.steps.state_shapes)

    seen = [[float(one.loss), *map(float, routing_of(one))] for one in going_on.train(3)]
    np.testing.assert_allclose(seen, np.array(plain_curve())[3:, :3], atol=2e-4)


@pytest.mark.slow
def test_tokens_travel_to_their_experts_and_back_once_each_way() -> None:
    run = Run(SPEC, LAYOUTS["expert 4"])
    program = run.step.lower(run.state, run.batch(1), run.controls()).compile().as_text()

    tokens = 4  # there and back, in the forward pass and in the backward pass
    embedding = 1  # the gradient of the stream, to the devices that sum the embedding's
    assert len(re.findall(r" all-to-all\(", program)) == tokens + embedding


@pytest.mark.thorough
def test_no_token_depends_on_later_ones() -> None:
    run = Run(spec_of(TIGHT), ONE)
    sharpen(run)
    model = split_model(resolve(run.spec.model), run.spec.precision, run.spec.memory, "cpu")
    tokens = np.array(run.batch(1).tokens[0, 0])
    changed = tokens.copy()
    changed[:, 8:] = np.random.default_rng(1).integers(0, 257, changed[:, 8:].shape)

    logits, others = (np.asarray(model.apply(run.state.params, one)) for one in (tokens, changed))

    np.testing.assert_allclose(logits[:, :8], others[:, :8], atol=1e-6)
    assert not np.allclose(logits[:, 8:], others[:, 8:], atol=1e-2)


VARIANTS: dict[str, dict[str, Any]] = {
    "layers computed again": {"memory__remat": "full"},
}


@each("changes", VARIANTS)
def test_memory_settings_change_no_number(changes: dict[str, Any]) -> None:
    spec = spec_of(TIGHT | {"groupLength": 4, "shared": 1}, **changes)

    np.testing.assert_allclose(curve(spec, ONE), plain_curve(), atol=1e-4)


@pytest.mark.slow
def test_routers_learn_from_the_loss_and_to_balance() -> None:
    """The router's gradient is that of the trained loss, measured by small steps along one direction."""
    experts = TIGHT | {"capacityFactor": 2.0}
    run = Run(spec_of(experts), ONE)
    sharpen(run)
    batch = run.batch(1)
    direction = np.random.default_rng(3).normal(size=run.state.params["layers"]["mlp"]["router"].shape)

    def trained_loss(length: float) -> float:
        params = numpy_tree(run.state.params)
        params["layers"]["mlp"]["router"] = params["layers"]["mlp"]["router"] + length * direction
        rows = [run_row(run.spec, params, row) for row in sequences_of(batch)[0, 0]]
        losses, routing = (np.array(one) for one in zip(*rows, strict=True))
        return float(losses.mean() + WEIGHT * routing[:, :, 0].sum(axis=1).mean())

    _, grads = jax.jit(run.steps._sums.compute_gradients)(run.state.params, batch)
    slope = float(np.sum(np.asarray(grads["layers"]["mlp"]["router"]) * direction)) / np.size(batch.tokens)

    assert slope == pytest.approx((trained_loss(1e-5) - trained_loss(-1e-5)) / 2e-5, rel=1e-3)


@pytest.mark.slow
def test_in_bfloat16_tokens_go_the_same_ways() -> None:
    plain, coarse = (
        Run(spec_of(TIGHT | {"capacityFactor": 1.25}, precision__compute=compute), ONE)
        for compute in ("float32", "bfloat16")
    )
    want, seen = (list(run.train(3)) for run in (plain, coarse))

    values, others = (np.array([[one.loss, *routing_of(one)] for one in metrics]) for metrics in (want, seen))
    np.testing.assert_allclose(others, values, atol=0.05)
