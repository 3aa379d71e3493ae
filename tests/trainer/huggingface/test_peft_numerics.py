"""Adapters of PEFT: logits, loss and gradients are those that `peft` computes, in float32."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.trainer.huggingface import Fixture, to_files
from tests.trainer.huggingface.test_adapters import export, shapes_of, spec_of
from trainingjob_api.huggingface.peft import bind_adapters
from trainingjob_api.huggingface.registry import FAMILIES
from trainingjob_api.network.resolve import resolve_network
from trainingjob_trainer.huggingface.adapter_files import load_adapters
from trainingjob_trainer.huggingface.safetensors import read_header
from trainingjob_trainer.models.decoder import Params, split_model
from trainingjob_trainer.models.token_losses import losses_of_logits
from trainingjob_trainer.models.trainable import merge_trees, tensor_name
from trainingjob_trainer.store.opening import open_store

FOLDER = Path(__file__).parents[2] / "fixtures/peft/llama"
NEAR = 1e-4


def test_logits_loss_and_gradients_are_those_of_peft(tmp_path: Path) -> None:
    fixture = Fixture("llama")
    spec = spec_of(fixture, FOLDER)
    network = resolve_network(spec)
    model = split_model(network, spec.precision, spec.memory, "cpu")
    split = model.param_split
    with np.load(FOLDER / "expected.npz") as arrays:
        expected = dict(arrays)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), split.split(model.shapes).trained)
    params = jax.tree.map(np.asarray, load_adapters(spec, merge_trees(fixture.load(), zeros), shapes_of(spec)))
    trained, frozen = split.split(params)

    def run(trained: Params) -> tuple[jax.Array, jax.Array]:
        logits = model.apply(split.merge(trained, frozen), expected["tokens"])
        return jnp.mean(losses_of_logits(logits[:, :-1], expected["tokens"][:, 1:]).cross_entropy), logits

    (loss, logits), gradients = jax.jit(jax.value_and_grad(run, has_aux=True))(trained)

    assert np.abs(logits - expected["logits"]).max() < NEAR
    assert abs(loss - expected["loss"]) < NEAR
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    binding = bind_adapters(FAMILIES["llama"], network).binding
    found = to_files({tensor_name(path): np.asarray(leaf) for path, leaf in leaves}, binding)
    wanted = {name.removeprefix("gradient/"): value for name, value in expected.items() if "gradient/" in name}
    assert found.keys() == wanted.keys()
    assert len(wanted) == 20
    for name, want in wanted.items():
        assert np.abs(found[name] - want).max() < NEAR, name


def test_an_export_has_the_names_and_shapes_of_peft(tmp_path: Path) -> None:
    spec = spec_of(Fixture("llama"), FOLDER)
    zeros = jax.tree.map(lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), shapes_of(spec))

    export(spec, load_adapters(spec, zeros, shapes_of(spec)), tmp_path, "peft")

    ours, theirs = (read_header(open_store(folder), "adapter_model.safetensors") for folder in (tmp_path, FOLDER))
    assert {name: entry.shape for name, entry in ours.items()} == {name: entry.shape for name, entry in theirs.items()}
    config, published = (json.loads((folder / "adapter_config.json").read_text()) for folder in (tmp_path, FOLDER))
    assert sorted(config["target_modules"]) == sorted(published["target_modules"])
    assert config.keys() <= published.keys()
    assert (config["r"], config["lora_alpha"], config["bias"]) == (2, 6, "none")
