"""Generation of text: the cache has the logits of the whole sequence, for each family and on each mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.huggingface import FOLDER, Fixture, to_host
from tests.support.trainer.training import spec_with
from trainingjob_api.decoding import DecodingShape
from trainingjob_trainer.models.decoder import Params, SplitModel, split_model_of
from trainingjob_trainer.models.decoding_cache import decoding_network, empty_cache

FAMILIES = sorted(folder.name for folder in FOLDER.iterdir())
NEAR = 1e-4
CHUNK = 5
"""Tokens that are read at once, before the others one by one."""


def decode(model: SplitModel, params: Params, tokens_BL: jax.Array) -> jax.Array:
    """Return the logits of each position, computed from the cache."""
    shape = DecodingShape(tokens_BL.shape[0], tokens_BL.shape[1] + 3)  # a row need not be full
    cache = empty_cache(model.network, shape, jnp.float32)
    read = jax.jit(model.decode)
    seen = []
    for first, last in [(0, CHUNK), *((place, place + 1) for place in range(CHUNK, tokens_BL.shape[1]))]:
        hidden, cache = read(params, tokens_BL[:, first:last], cache, jnp.int32(first))
        seen.append(hidden)
    return jax.jit(model.logits)(params, jnp.concatenate(seen, axis=1))


@pytest.mark.thorough
@each("name", {name: name for name in FAMILIES}, "deepseek_v3", "gemma3_text", "gpt_oss", "llama4_text", "mixtral")
def test_each_family_has_the_logits_of_the_whole_sequence(name: str) -> None:
    fixture = Fixture(name)
    model, params, tokens = fixture.split(), to_host(fixture.load()), fixture.expected["tokens"]

    found = decode(
        SplitModel(decoding_network(model.network), model.precision, model.memory), params, jnp.asarray(tokens)
    )

    assert np.abs(found - fixture.expected["logits"]).max() < NEAR


def test_new_tokens_have_the_order_of_the_sequence_if_training_has_a_ring() -> None:
    network = split_model_of(spec_with(parallelism__context={"exchange": "ring"})).network

    assert network.exchange == "ring"
    assert decoding_network(network).exchange == "gather"
