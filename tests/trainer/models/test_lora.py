"""LoRA: numbers of a model with merged matrices, the same on every layout, and dropout that follows the position."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.lora import adapter_gradients, merge
from tests.support.trainer.reference import row_losses
from tests.support.trainer.reference_gradients import find_gradients
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import (
    ONE,
    Run,
    check_restored,
    flat,
    losses,
    numpy_tree,
    sequences_of,
    spec_with,
)
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import JobIdentity, Layout, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.models.dropout import drop_features, seeds_of_next_layer, sequence_seeds, use_seeds

ALL: dict[str, Any] = {"rank": 2, "alpha": 6, "targets": ["*.attention.*", "*.mlp.*"]}
ROUTED: dict[str, Any] = {"model__experts": {"count": 4, "perToken": 2, "shared": 1}}
LATENT: dict[str, Any] = {
    "model__latentAttention": {"queryRank": 8, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 8, "valueDim": 8}
}
CASES: dict[str, dict[str, Any]] = {
    "all matrices": {"lora": ALL},
    "dropout": {"lora": ALL | {"dropout": 0.3}},
    "int8": {"lora": ALL | {"baseQuantization": "int8"}},
    "int8, experts, dropout": {"lora": ALL | {"baseQuantization": "int8", "dropout": 0.1}} | ROUTED,
    "dropless experts in int8": {"lora": ALL | {"baseQuantization": "int8"}}
    | {"model__experts": {"count": 4, "perToken": 2, "dispatch": "dropless"}},
    "latent attention": {"lora": ALL} | LATENT,
    "pattern": {"lora": ALL | {"targets": ["layers.1.*.query"]}}
    | {"model__layers": {"pattern": [{"count": 1}, {"positions": "none"}]}, "model__numLayers": 4},
}
BY_REFERENCE = ("all matrices", "int8")
MESHES = (
    "data 2 over slices, fsdp 4",
    "data 2, fsdp 2, tensor 2, accumulation 2",
    "context 4, tensor 2, accumulation 2",
    "2 stages, fsdp 2, tensor 2, 4 microbatches",
)
EXPERTS_OVER_DEVICES = make_layout(devices_per_host=8, ici=AxisDegrees(expert=4, tensor=2), rows_per_shard=2)


def with_random_outputs(run: Run) -> dict[str, Any]:
    """Return the parameters of a run as numbers, with B that is not zero: else A would have no gradient."""
    numbers = np.random.default_rng(3)

    def fill(path: Any, leaf: jax.Array) -> jax.Array:
        if not jax.tree_util.keystr(path).endswith("_lora_b']"):
            return leaf
        return jax.device_put(numbers.normal(0, 0.3, leaf.shape).astype(np.float32), leaf.sharding)

    run.state = run.state._replace(params=jax.tree_util.tree_map_with_path(fill, run.state.params))
    return run.state.params


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_REFERENCE)
def test_the_forward_pass_is_that_of_merged_matrices(name: str) -> None:
    spec = spec_with(**CASES[name])
    run = Run(spec, ONE)
    params, batch = with_random_outputs(run), run.batch(1)

    total, weight = run.evaluate(params, batch)

    merged = merge(numpy_tree(params), 3.0)
    want = [row_losses(spec, merged, row) for row in sequences_of(batch)[0, 0]]
    assert float(total) / float(weight) == pytest.approx(np.mean(want), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_REFERENCE)
def test_the_gradients_of_adapters_follow_from_those_of_merged_matrices(name: str) -> None:
    spec = spec_with(**CASES[name])
    run = Run(spec, ONE)
    params, batch = with_random_outputs(run), run.batch(1)
    ours = numpy_tree(params)

    terms, grads = jax.jit(run.steps._sums.compute_gradients)(params, batch)

    merged = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), merge(ours, 3.0))
    _, theirs = find_gradients(spec, merged, sequences_of(batch)[0, 0])
    for part, names in {"attention": ("query", "key", "value", "out"), "mlp": ("gate", "up", "down")}.items():
        for one in names:
            want_a, want_b = adapter_gradients(ours["layers"][part], one, theirs["layers"][part][one], 3.0)
            for ending, want in (("_lora_a", want_a), ("_lora_b", want_b)):
                found = np.asarray(grads["layers"][part][f"{one}{ending}"]) / float(terms.weight)
                np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-6)


def test_an_adapter_starts_without_effect() -> None:
    run, plain = Run(spec_with(**CASES["all matrices"]), ONE), Run(spec_with(), ONE)
    params, batch = numpy_tree(run.state.params), run.batch(1)

    total, _ = run.evaluate(run.state.params, batch)

    same = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), merge(params, 3.0))
    expected, _ = plain.evaluate(same, batch)
    assert float(total) == pytest.approx(float(expected), rel=1e-6)
    query = params["layers"]["attention"]["query_lora_a"]
    assert 0.2 < np.abs(query).max() <= 16**-0.5


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_training_changes_the_adapters_alone(name: str) -> None:
    run = Run(spec_with(**CASES[name]), ONE)
    before = flat(run.state.params)

    list(run.train(2))

    changed = {key for key, value in flat(run.state.params).items() if not np.array_equal(value, before[key])}
    adapters = {key for key in before if key.endswith(("_lora_a']", "_lora_b']"))}
    assert changed == adapters != set()
    assert len(jax.tree.leaves(run.state.opt[1].mu)) == len(adapters)


@pytest.mark.thorough
@each("mesh", {name: LAYOUTS[name] for name in MESHES}, MESHES[1], MESHES[3])
@each("changes", {name: changes for name, changes in CASES.items() if name != "pattern"}, "dropout")
def test_the_loss_curve_does_not_depend_on_the_layout(changes: dict[str, Any], mesh: Layout) -> None:
    assert losses(spec_with(**changes), mesh) == pytest.approx(losses(spec_with(**changes), ONE), abs=1e-4)


@pytest.mark.thorough
def test_the_masks_of_dropout_follow_the_tokens_around_a_ring() -> None:
    ring = spec_with(**CASES["dropout"], parallelism__context={"exchange": "ring"})

    assert losses(ring, LAYOUTS[MESHES[2]]) == pytest.approx(losses(spec_with(**CASES["dropout"]), ONE), abs=1e-4)


@pytest.mark.thorough
def test_the_loss_curve_does_not_depend_on_the_devices_of_experts() -> None:
    changes = CASES["int8, experts, dropout"]

    assert losses(spec_with(**changes), EXPERTS_OVER_DEVICES) == pytest.approx(
        losses(spec_with(**changes), ONE), abs=1e-4
    )


# XLA for CPUs multiplies each row with all experts without capacity slots.
@pytest.mark.thorough
@each("changes", {name: changes for name, changes in CASES.items() if "dropless" not in name}, "all matrices")
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_compiled_step_has_the_flops_of_the_plan(changes: dict[str, Any], remat: str) -> None:
    spec, layout = spec_with(memory__remat=remat, **changes), make_layout(accumulation=2)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))

    planned = count_step_flops(describe_workload(spec), layout)

    assert compile_step(config, layout).flops == pytest.approx(planned, rel=0.02 if spec.model.experts else 0)


@pytest.mark.thorough
def test_a_checkpoint_holds_int8_matrices_and_their_scales(tmp_path: Any) -> None:
    restored = check_restored(tmp_path, Run(spec_with(**CASES["int8"]), ONE))

    assert restored.params["layers"]["mlp"]["up"].dtype == jnp.int8


def test_evaluation_drops_nothing() -> None:
    with_dropout, without = (Run(spec_with(**CASES[name]), ONE) for name in ("dropout", "all matrices"))
    batch = without.batch(1)

    found, _ = with_dropout.evaluate(with_random_outputs(with_dropout), batch)

    expected, _ = without.evaluate(with_random_outputs(without), batch)
    assert float(found) == float(expected)


@pytest.mark.thorough
def test_dropout_changes_the_loss_of_a_step() -> None:
    first, second = (losses(spec_with(**CASES[name]), ONE) for name in ("dropout", "all matrices"))

    assert first[0] == second[0]  # adapters start without effect
    assert first[-1] != second[-1]


def masks(seeds_B: jax.Array, name: str = "query", rate: float = 0.25) -> np.ndarray:
    with use_seeds(seeds_B):
        return np.asarray(drop_features(jnp.ones((len(seeds_B), 64, 32)), rate, name) == 0)


def test_a_mask_depends_on_seed_step_sequence_layer_and_matrix() -> None:
    seeds = sequence_seeds(5, jnp.int32(7), (4,))
    changed = {
        "seed": sequence_seeds(6, jnp.int32(7), (4,)),
        "step": sequence_seeds(5, jnp.int32(8), (4,)),
        "layer": seeds_of_next_layer(seeds),
        "sequence": jnp.roll(seeds, 1),
    }
    dropped = masks(seeds)

    assert np.array_equal(dropped, masks(sequence_seeds(5, jnp.int32(7), (1, 2, 2)).reshape(4)))
    for other in changed.values():
        assert np.mean(dropped == masks(other)) == pytest.approx(1 - 2 * 0.25 * 0.75, abs=0.03)
    assert np.mean(dropped == masks(seeds, "key")) == pytest.approx(1 - 2 * 0.25 * 0.75, abs=0.03)


def test_a_mask_drops_its_share_in_each_direction() -> None:
    dropped = masks(sequence_seeds(5, jnp.int32(7), (16,)))

    assert np.mean(dropped) == pytest.approx(0.25, abs=0.01)
    for axes in ((1, 2), (0, 2), (0, 1)):
        assert np.std(np.mean(dropped, axis=axes)) < 0.03


def test_values_that_stay_keep_the_mean() -> None:
    with use_seeds(sequence_seeds(5, jnp.int32(7), (2,))):
        kept = np.asarray(drop_features(jnp.ones((2, 8, 8)), 0.25, "query"))

    assert set(np.unique(kept)) <= {0.0, np.float32(1 / 0.75)}
    assert np.array_equal(drop_features(jnp.ones((2, 8, 8)), 0.25, "query"), np.ones((2, 8, 8)))


def test_int8_matrices_differ_from_their_floats_by_half_a_step() -> None:
    spec: TrainingJobSpec = spec_with(**CASES["int8"])
    names = {tensor.name for tensor in resolve_network(spec).tensors if tensor.name.endswith("_scale")}
    stored, plain = (numpy_tree(Run(one, ONE).state.params)["layers"] for one in (spec, spec_with(lora=ALL)))

    assert len(names) == 7
    for part, name in (("attention", "query"), ("attention", "out"), ("mlp", "down")):
        scale = stored[part][f"{name}_scale"]
        dims = (1, 2) if name == "out" else (1,)
        error = np.abs(stored[part][name] * np.expand_dims(scale, dims) - plain[part][name])
        assert np.all(error <= np.expand_dims(scale, dims) / 2 * 1.0001)
        assert np.abs(stored[part][name]).max() == 127
