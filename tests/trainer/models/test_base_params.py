"""The base of LoRA from published weights: read into shards, quantized tensor by tensor, beside fresh adapters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture, all_axes_mesh
from tests.support.trainer.lora import merge
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.training import numpy_tree
from trainingjob_api.network.adapt import adapt
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.checkpoint import HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.huggingface.published_params import load_published_params
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params, split_model
from trainingjob_trainer.parallel.sharding import param_shardings

FACTOR = 2.0


def load_with_lora(fixture: Fixture, quantization: Any) -> tuple[Params, Params]:
    """Return the parameters of a job with LoRA that starts from a fixture, and those before it reads the files."""
    lora = Lora(rank=2, alpha=2 * FACTOR, targets=("*",), base_quantization=quantization)
    network = adapt(resolve(fixture.model), lora)
    model = split_model(network, Precision(compute="float32"), Memory(), "cpu")
    shardings = param_shardings(model.axes, model.shapes, all_axes_mesh(), RULES)
    shapes = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), model.shapes, shardings
    )
    random = jax.jit(lambda: model.init(3), out_shardings=shardings)()
    before = numpy_tree(random)
    source = InitializeFrom(hugging_face=HuggingFaceSource(path=str(fixture.folder)))
    base = BaseParams(network, shapes, jnp.float32)
    loaded = load_published_params(source, fixture.model, base, random, ObjectStore(), is_leader=False)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), loaded.params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), shapes
    )
    return loaded.params, before


@pytest.mark.thorough
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_the_base_is_that_of_the_files(name: str, quantization: str | None) -> None:
    fixture = Fixture(name)
    plain = numpy_tree(fixture.load())

    params, before = load_with_lora(fixture, quantization)

    merged = merge(numpy_tree(params), FACTOR)  # B is zero
    for found, expected in zip(jax.tree.leaves(merged), jax.tree.leaves(plain), strict=True):
        allowed = np.abs(expected).max() / 254 * 1.001 if quantization else 0
        assert np.abs(found - expected).max() <= allowed
    adapter = params["layers"]["attention"]["query_lora_a"]
    np.testing.assert_array_equal(adapter, before["layers"]["attention"]["query_lora_a"])
