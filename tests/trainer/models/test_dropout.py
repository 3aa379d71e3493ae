"""Dropout of hidden states: where it applies, and masks that depend on no layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.test_step import LAYOUTS, PADDED
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.models.decoder import SplitModel
from trainingjob_trainer.models.dropout import sequence_seeds

RESIDUAL = {"model__dropout": {"residual": 0.3}}
EMBEDDING = {"model__dropout": {"embedding": 0.3}}
BOTH = {"model__dropout": {"residual": 0.2, "embedding": 0.1}}
RING = {"parallelism__context": {"exchange": "ring"}}
MESHES = {
    name: LAYOUTS[name]
    for name in (
        "data 2 over slices, fsdp 4",
        "data 2, fsdp 2, tensor 2, accumulation 2",
        "context 4, tensor 2, accumulation 2",
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        PADDED,
    )
} | {"expert 4, tensor 2": make_layout(devices_per_host=8, ici=AxisDegrees(expert=4, tensor=2), rows_per_shard=2)}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "a ring": (RING, "context 4, tensor 2, accumulation 2"),
    "a circular pipeline": (
        {"model__numLayers": 4, "parallelism__pipeline": {"schedule": "circular"}},
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
    ),
    "a sharded stream": ({"parallelism__shardStreamOverTensor": True}, "data 2, fsdp 2, tensor 2, accumulation 2"),
    "experts": ({"model__experts": {"count": 4, "perToken": 2, "shared": 1}}, "expert 4, tensor 2"),
    "further tokens": ({"model__multiTokenPrediction": {"depth": 2}}, "data 2, fsdp 2, tensor 2, accumulation 2"),
    "layers computed again": ({"memory__remat": "full"}, "data 2 over slices, fsdp 4"),
}
SEEDS = sequence_seeds(3, jnp.int32(1), (4,))
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, 257, (4, 16)), jnp.int32)


def build(**changes: Any) -> SplitModel:
    spec = spec_with(**changes)
    return SplitModel(resolve_network(spec), spec.precision, spec.memory)


@pytest.mark.thorough
@each("mesh", MESHES, "data 2, fsdp 2, tensor 2, accumulation 2", "2 stages, fsdp 2, tensor 2, 4 microbatches")
def test_the_loss_curve_does_not_depend_on_the_layout(mesh: Any) -> None:
    assert losses(spec_with(**BOTH), mesh) == pytest.approx(losses(spec_with(**BOTH), ONE), abs=1e-4)


@pytest.mark.thorough
@each("variant", VARIANTS, "a ring", "a circular pipeline", "further tokens")
def test_the_loss_curve_of_other_models_does_not_depend_on_the_layout(variant: tuple[dict[str, Any], str]) -> None:
    changes, mesh = variant
    plain = {name: value for name, value in changes.items() if not name.startswith(("parallelism", "memory"))}

    assert losses(spec_with(**BOTH, **changes), MESHES[mesh]) == pytest.approx(
        losses(spec_with(**BOTH, **plain), ONE), abs=1e-4
    )


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [RESIDUAL, EMBEDDING], ids=["residual", "embedding"])
def test_a_rate_changes_the_loss_of_a_step_and_no_evaluation(changes: dict[str, Any]) -> None:
    run, plain = Run(spec_with(**changes), ONE), Run(spec_with(), ONE)
    batch = run.batch(1)

    assert float(run.evaluate(run.state.params, batch)[0]) == float(plain.evaluate(plain.state.params, batch)[0])
    assert float(next(run.train(1)).loss) != pytest.approx(float(next(plain.train(1)).loss), rel=1e-4)


def test_a_share_of_the_embeddings_is_zero_and_the_rest_is_scaled_up() -> None:
    model = build(**EMBEDDING)
    params = model.init(0)

    whole, dropped = (np.asarray(model.embed(params, TOKENS, seeds_B=seeds).x) for seeds in (None, SEEDS))

    is_zero = dropped == 0
    assert np.mean(is_zero) == pytest.approx(0.3, abs=0.03)
    np.testing.assert_allclose(dropped[~is_zero], whole[~is_zero] / 0.7, rtol=1e-6)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_a_share_of_what_a_part_adds_is_zero_and_the_rest_is_scaled_up(part: str) -> None:
    model = build(**RESIDUAL, model__numLayers=1)
    params = model.init(0)
    other = {"attention": ("mlp", "down"), "mlp": ("attention", "out")}[part]
    params["layers"][other[0]][other[1]] *= 0  # one part alone adds something

    def added(seeds: jax.Array | None) -> np.ndarray:
        before = model.embed(params, TOKENS, seeds_B=seeds)
        return np.asarray(model.run_layers(params, before).x - before.x)

    whole, dropped = added(None), added(SEEDS)

    is_zero = dropped == 0
    assert np.mean(is_zero) == pytest.approx(0.3, abs=0.03)
    np.testing.assert_allclose(dropped[~is_zero], whole[~is_zero] / 0.7, rtol=1e-3, atol=1e-5)


def test_a_norm_of_the_output_comes_before_its_dropout() -> None:
    model = build(**RESIDUAL, model__numLayers=1, model__norm={"placement": "post"})
    params = model.init(0)
    before = model.embed(params, TOKENS, seeds_B=SEEDS)

    added = np.asarray(model.run_layers(params, before).x - before.x)

    assert np.mean(added == 0) == pytest.approx(0.3**2, abs=0.02)  # those that both parts drop


def test_parts_and_layers_have_masks_of_their_own() -> None:
    model = build(model__dropout={"residual": 0.5}, model__numLayers=2)
    params = model.init(0)
    params["layers"]["attention"]["out"] *= 0
    stream = model.embed(params, TOKENS, seeds_B=SEEDS)
    after = model.run_layers(params, stream)

    unchanged = np.mean(np.asarray(after.x == stream.x))

    assert unchanged == pytest.approx(0.5**2, abs=0.03)
    assert not np.array_equal(after.seeds, SEEDS)


@pytest.mark.thorough
def test_modules_that_predict_further_tokens_drop_features_too() -> None:
    depth = {"model__multiTokenPrediction": {"depth": 1}}
    totals = []
    for changes in (RESIDUAL, {}):
        run = Run(spec_with(**depth, **changes), ONE)
        run.state.params["layers"]["mlp"]["down"] *= 0
        run.state.params["layers"]["attention"]["out"] *= 0  # the layers add nothing, so that they drop nothing
        batch = run.steps._seed_dropout(run.batch(1), jnp.int32(1))
        terms = jax.jit(run.steps._sums.compute)(run.state.params, batch)
        totals.append((float(terms.total), float(terms.loss)))
    (total, loss), (plain_total, plain_loss) = totals

    assert loss == pytest.approx(plain_loss, rel=1e-6)
    assert total != pytest.approx(plain_total, rel=1e-4)


def test_without_rates_the_program_has_no_seeds() -> None:
    with_zeros, without = (spec_with(**changes) for changes in ({"model__dropout": {"residual": 0.0}}, {}))
    run = Run(with_zeros, ONE)

    assert with_zeros == without
    assert run.steps._seed_dropout(run.batch(1), jnp.int32(1)).seeds is None


@pytest.mark.thorough
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_compiled_step_has_the_flops_of_the_plan(remat: str) -> None:
    spec, layout = spec_with(memory__remat=remat, **BOTH), make_layout(accumulation=2)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))

    assert compile_step(config, layout).flops == count_step_flops(describe_workload(spec), layout)


@pytest.mark.thorough
def test_the_backward_pass_saves_no_mask() -> None:
    def count_saved(**changes: Any) -> int:
        model = build(**changes, memory__remat="none")
        params = model.init(0)

        def total(params: Any) -> jax.Array:
            return jnp.sum(model.run_layers(params, model.embed(params, TOKENS, seeds_B=SEEDS)).x)

        saved = jax.tree.leaves(jax.eval_shape(lambda params: jax.vjp(total, params)[1], params))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in saved)

    seeds_and_places = count_saved(**BOTH) - count_saved()
    assert 0 <= seeds_and_places < TOKENS.size * 16, "a mask would have a byte for each token and feature"
