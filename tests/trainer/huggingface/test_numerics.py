"""Numerics of imported models: logits, loss and gradients are those of `transformers`, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.huggingface import FOLDER, Fixture, to_files, to_host
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.token_losses import losses_of_logits
from trainingjob_trainer.models.trainable import tensor_name

FAMILIES = sorted(folder.name for folder in FOLDER.iterdir())
NEAR = 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_loss_and_gradients_are_those_of_transformers(name: str) -> None:
    fixture = Fixture(name)
    model, params, tokens = fixture.split(), to_host(fixture.load()), fixture.expected["tokens"]

    def run(params: Params) -> tuple[jax.Array, jax.Array]:
        logits = model.apply(params, tokens)
        return jnp.mean(losses_of_logits(logits[:, :-1], tokens[:, 1:]).cross_entropy), logits

    (loss, logits), gradients = jax.jit(jax.value_and_grad(run, has_aux=True))(params)

    assert np.abs(logits - fixture.expected["logits"]).max() < NEAR
    assert abs(loss - fixture.expected["loss"]) < NEAR
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    found = to_files({tensor_name(path): np.asarray(leaf) for path, leaf in leaves}, fixture.binding)
    for tensor, want in fixture.gradients.items():
        assert np.abs(found[tensor] - want).max() < NEAR, tensor
