"""Rematerialization: what each policy computes again is what the plan counts, and offloaded activations leave."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.models.test_gradients import walk
from trainingjob_api.base import AXES
from trainingjob_api.network.activations import POLICIES, PRODUCTS, SavedActivations
from trainingjob_api.network.block import Block
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.layers import HiddenStates, Layer
from trainingjob_trainer.models.remat import rematerialize

LENGTH, SMALL_LENGTH = 512, 64
NETWORKS: dict[str, dict[str, Any]] = {
    "gated": {},
    "norms after both parts": {"model__norm": {"placement": "both"}},
    "without gate": {"model__mlp": {"gated": False}},
    "latent": {
        "model__latentAttention": {"queryRank": 8, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 4, "valueDim": 8},
        "model__numKvHeads": None,
        "model__headDim": None,
    },
}
SAVED = {
    **{name: Memory.model_validate({"remat": name}).saved for name in POLICIES},
    "one product": SavedActivations(frozenset({"mlpUp"})),
}


def make_block(changes: dict[str, Any], accelerator: str) -> Block:
    ((block,),) = (group.pattern for group in resolve(spec_with(**changes).model).on(accelerator).groups)
    return block


def trace(block: Block, saved: SavedActivations | None, length: int) -> Any:
    """Return the program of the gradients of one layer, with respect to its parameters and its input."""
    layer = Layer(block, Precision(compute="float32"), nnx.Rngs(0))
    graph, params = nnx.split(layer)
    x_BLD = jnp.ones((1, length, block.attention.width))

    def total(params: Any, x_BLD: jax.Array) -> jax.Array:
        hidden = HiddenStates(x_BLD, None)
        run = rematerialize(nnx.merge(graph, params), saved)
        return jnp.sum(run(hidden).x)

    return jax.make_jaxpr(jax.grad(total, (0, 1)))(params, x_BLD).jaxpr


def count_flops(program: Any, times: int = 1) -> int:
    """Return the FLOPs of the matmuls of a program; a loop's count once for each of its turns."""
    flops = 0
    for line in program.eqns:
        if line.primitive.name == "dot_general":
            ((contracted, _), _) = line.params["dimension_numbers"]
            size = np.prod([line.invars[0].aval.shape[dim] for dim in contracted])
            flops += 2 * times * int(size * np.prod(line.outvars[0].aval.shape))
        turns = times * line.params["length"] if line.primitive.name == "scan" else times
        for inner in jax.tree.leaves(list(line.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                flops += count_flops(getattr(inner, "jaxpr", inner), turns)
    return flops


@pytest.mark.thorough
@pytest.mark.parametrize("length", [SMALL_LENGTH, LENGTH], ids=["plain attention", "chunked attention"])
@pytest.mark.parametrize("policy", ["none", *SAVED])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_policy_computes_again_what_the_plan_counts(network: str, policy: str, length: int) -> None:
    block, saved = make_block(NETWORKS[network], "cpu"), SAVED.get(policy)
    planned = block.flops(Shard(length, 4, dict.fromkeys(AXES, 1)), saved)

    found = count_flops(trace(block, saved, length))

    assert found == pytest.approx(length * (planned.forward + planned.backward + planned.recomputed), rel=0.02)


def test_each_policy_saves_less_than_the_one_before() -> None:
    shard, block = Shard(LENGTH, 4, dict.fromkeys(AXES, 1)), make_block({}, "cpu")
    policies = [SAVED[name] for name in ("minimal", "saveMatmuls", "saveAttention", "full")]
    minimal, *others, full = (block.flops(shard, saved).recomputed for saved in policies)
    saved_bytes = [block.saved_bytes(shard, saved) for saved in (None, *policies)]

    assert minimal < min(others) < max(others) < full
    assert saved_bytes == sorted(saved_bytes, reverse=True)


def test_an_offloaded_activation_leaves_the_device() -> None:
    block = make_block({}, "cpu")
    kept, offloaded = (
        [str(line.params) for line in walk(trace(block, saved, SMALL_LENGTH)) if line.primitive.name == "device_put"]
        for saved in (
            SavedActivations(frozenset({"mlpUp", "query"})),
            SavedActivations(frozenset({"mlpUp"}), frozenset({"query"})),
        )
    )

    assert kept == []
    assert any("MemorySpace.Device" in line for line in offloaded)  # back from the host


CUSTOM = {"memory__remat": "custom", "memory__save": ["key", "mlpUp", "attentionOutput"]}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"memory__remat": "minimal"}, CUSTOM], ids=["minimal", "custom"])
def test_a_policy_changes_no_number(changes: dict[str, Any]) -> None:
    assert losses(spec_with(**changes), ONE) == pytest.approx(losses(spec_with(), ONE), abs=1e-5)


def test_every_layer_of_a_pattern_saves_its_own_input() -> None:
    """Of two layers in a pattern, each is computed again by itself."""
    layers = {"pattern": [{"attention": "window"}, {"attention": "full"}]}
    spec = spec_with(model__layers=layers, model__attention={"window": 8}, memory__remat="full")
    run = Run(spec, ONE)

    program = jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls()).jaxpr
    repeated = [line for line in walk(program) if line.primitive.name == "remat2"]

    assert len(repeated) == 2


def test_every_product_of_a_layer_has_a_name() -> None:
    for changes in NETWORKS.values():
        matrices = [tensor for tensor in make_block(changes, "cpu").tensors if tensor.is_matrix]

        assert {tensor.local_name for tensor in matrices} <= set(PRODUCTS)
