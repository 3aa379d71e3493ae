"""Layers in several groups, and in patterns of several blocks: they compute what one group of all layers computes."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts, RoutedMlp
from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.layers import HiddenStates

FLOAT32 = Precision(compute="float32")
NETWORK = resolve(Model(vocab_size=64, embed_dim=16, mlp_dim=24, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=4))
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 8))
(LAYERS,) = NETWORK.groups


def split(network: Network) -> SplitModel:
    return SplitModel(network, FLOAT32, Memory())


def take(params: Params, first: int, last: int, step: int = 1) -> Any:
    return jax.tree.map(lambda leaf: leaf[first:last:step], params["layers"])


def without_layers(params: Params) -> Params:
    return {name: param for name, param in params.items() if name != "layers"}


@pytest.mark.thorough
def test_two_groups_run_one_after_the_other() -> None:
    whole = split(NETWORK)
    params = whole.init(1)
    groups = replace(LAYERS, name="first", repeats=1), replace(LAYERS, name="second", repeats=3)
    parts = without_layers(params) | {"first": take(params, 0, 1), "second": take(params, 1, 4)}

    found = split(replace(NETWORK, groups=groups)).apply(parts, jnp.asarray(TOKENS))

    np.testing.assert_allclose(found, whole.apply(params, jnp.asarray(TOKENS)), atol=1e-6)


def test_a_pattern_runs_its_blocks_in_turn() -> None:
    whole = split(NETWORK)
    params = whole.init(1)
    pattern = Group("layers", LAYERS.pattern * 2, 2)
    parts = without_layers(params) | {"layers": {"0": take(params, 0, 4, 2), "1": take(params, 1, 4, 2)}}

    found = split(replace(NETWORK, groups=(pattern,))).apply(parts, jnp.asarray(TOKENS))

    np.testing.assert_allclose(found, whole.apply(params, jnp.asarray(TOKENS)), atol=1e-6)


def test_the_tensors_of_groups_and_patterns_have_their_declared_names() -> None:
    (block,) = LAYERS.pattern
    assert isinstance(block.mlp, DenseMlp)
    routed = replace(
        block, mlp=RoutedMlp(block.mlp.width, block.mlp.hidden, Experts(count=4, per_token=2), block.mlp.options)
    )
    network = replace(NETWORK, groups=(Group("dense", (block,), 1), Group("layers", (routed, block), 2)))
    made = split(network)

    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(made.shapes)
    }

    assert shapes == {tensor.name: tensor.shape for tensor in network.tensors}
    assert made.embed(made.init(0), jnp.asarray(TOKENS)).routing is not None


def test_a_pipeline_takes_one_group() -> None:
    groups = replace(LAYERS, name="first", repeats=2), replace(LAYERS, name="second", repeats=2)
    model = split(replace(NETWORK, groups=groups))
    params = model.init(0)

    with pytest.raises(ValueError, match="too many values"):
        model.run_stages(params, model.embed(params, jnp.asarray(TOKENS)), 2)


@pytest.mark.parametrize(("microbatches", "stages"), [(2, 2), (3, 4)])
def test_a_pipeline_runs_the_ticks_of_its_schedule(microbatches: int, stages: int) -> None:
    model = split(NETWORK)
    x = jax.ShapeDtypeStruct((microbatches, 2, 8, 16), jnp.float32)

    program = jax.make_jaxpr(lambda params, x: model.run_stages(params, HiddenStates(x, None), stages))(model.shapes, x)

    lengths = [line.params["length"] for line in program.jaxpr.eqns if line.primitive.name == "scan"]
    assert lengths == [PipelineSchedule(microbatches, stages).ticks]
