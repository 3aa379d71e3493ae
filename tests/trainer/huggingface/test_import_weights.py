"""Import into shards: each host reads the numbers of its devices once, and the report lists what does not fit."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.trainer.huggingface import Fixture, all_axes_mesh, to_files
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.huggingface.test_safetensors import CountingStore
from trainingjob_trainer.huggingface.import_weights import import_array, import_params, match_tensors
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder, open_weights
from trainingjob_trainer.models.trainable import tensor_name


def in_memory(folder: Path, store: ObjectStore) -> WeightsFolder:
    store.objects.update({path.name: path.read_bytes() for path in folder.iterdir()})
    return open_weights(store)


def test_parameters_have_the_shardings_of_the_mesh() -> None:
    fixture = Fixture("mixtral")
    shapes = fixture.shapes(all_axes_mesh())

    params = import_params(fixture.weights, fixture.binding, shapes)

    assert jax.tree.map(lambda leaf: leaf.sharding, params) == jax.tree.map(lambda leaf: leaf.sharding, shapes)
    assert not params["layers"]["mlp"]["gate"].is_fully_replicated


def test_each_number_is_read_once_for_all_devices_of_a_host() -> None:
    fixture, store = Fixture("mixtral"), CountingStore()
    weights = in_memory(fixture.folder, store)
    store.bytes_read = 0

    import_params(weights, fixture.binding, fixture.shapes(all_axes_mesh()))

    assert store.bytes_read == sum(entry.stop - entry.start for entry in weights.tensors.values())


def test_tensors_of_other_shards_are_not_read() -> None:
    fixture, store = Fixture("llama"), CountingStore()
    weights = in_memory(fixture.folder, store)
    one = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("a",)), PartitionSpec())
    first_layer = fixture.binding.by_tensor["layers.attention.query"][:1]
    store.bytes_read = 0

    import_array(weights, first_layer, jax.ShapeDtypeStruct((2, 16, 4, 8), np.float32, sharding=one))

    assert store.bytes_read == 16 * 4 * 8 * 4


def test_numbers_are_converted_to_the_format_of_the_parameters() -> None:
    fixture = Fixture("llama")
    whole = NamedSharding(all_axes_mesh(), PartitionSpec())

    array = import_array(
        fixture.weights,
        fixture.binding.by_tensor["embedding"],
        jax.ShapeDtypeStruct((64, 16), jax.numpy.bfloat16, sharding=whole),
    )

    exact = fixture.weights.read("model.embed_tokens.weight", ((0, 64), (0, 16)))
    assert np.array_equal(array, exact.astype(jax.numpy.bfloat16))


@pytest.mark.parametrize("name", ["llama", "llama_tied", "mixtral", "qwen3"])
def test_imported_parameters_in_the_layout_of_files_are_the_files(name: str) -> None:
    fixture = Fixture(name)
    leaves = jax.tree_util.tree_leaves_with_path(fixture.load())

    found = to_files({tensor_name(path): np.asarray(leaf) for path, leaf in leaves}, fixture.binding)

    assert found.keys() == fixture.weights.tensors.keys()
    for tensor, array in found.items():
        want = fixture.weights.read(tensor, tuple((0, size) for size in array.shape))
        assert array.tobytes() == want.tobytes(), tensor


def test_the_report_lists_what_does_not_fit() -> None:
    fixture = Fixture("llama")
    tensors = dict(fixture.weights.tensors)
    norm, query, up = (
        f"model.layers.1.{name}.weight" for name in ("input_layernorm", "self_attn.q_proj", "mlp.up_proj")
    )
    tensors["model.layers.1.adapter"] = tensors.pop(norm)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"]
    tensors[query] = replace(tensors[query], shape=(8, 4))
    tensors[up] = replace(tensors[up], dtype="F8_E4M3")

    match = match_tensors(replace(fixture.weights, tensors=tensors), fixture.binding, ("rotary_emb.inv_freq",))

    assert match.missing == (norm,)
    assert match.incomplete == ("layers.attention_norm.scale",)
    assert match.unused == ("model.layers.1.adapter",)
    assert match.misfits == (
        f"{query} is 8x4, not 32x16",
        f"{up} has the format F8_E4M3, not one of F64, F32, F16, BF16",
    )
    assert len(match.matched) == len(fixture.weights.tensors) - 3
