"""Weights in the format of Hugging Face in buckets: exported there, and read from there."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture, all_axes_mesh
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.training import spec_with
from tests.trainer.huggingface.test_adapters import shapes_of, spec_of
from tests.trainer.huggingface.test_published_params import random_params
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.checkpoint import AdapterSource, HuggingFaceSource, InitializeFrom
from trainingjob_trainer.huggingface.adapter_files import load_adapters
from trainingjob_trainer.huggingface.companion_files import keep_companions
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.huggingface.published_params import load_published_params
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store import bucket_store
from trainingjob_trainer.store.bucket_store import BucketStore
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.weights_exchange.inspect_weights import inspect_weights

ALONE = ProcessGroup(0, 1)
MAX_FILE_BYTES = 20_000
"""Small enough for several files."""


@pytest.fixture(params=SCHEMES)
def root(request: pytest.FixtureRequest, object_servers: ObjectServers) -> Iterator[str]:
    with object_servers.environment(request.param):
        yield new_root(request.param)


def test_exported_weights_are_those_of_a_folder(root: str, tmp_path: Path) -> None:
    fixture, own = Fixture("llama"), open_store(f"{root}/run")
    spec = spec_with().model_copy(update={"model": fixture.model})
    keep_companions(fixture.weights.store, own)
    bucket, folder = open_store(f"{root}/exported"), open_store(tmp_path)
    bucket.write("model-00009-of-00009.safetensors", (b"of an earlier export",))

    for target in (bucket, folder):
        export_model(spec, gather_from(fixture.load()), own, ExportTarget(target, "float32", MAX_FILE_BYTES), ALONE)

    names = folder.list_files("")
    assert {"config.json", "generation_config.json", "model.safetensors.index.json"} <= set(names)
    assert bucket.list_files("") == names
    for name in names:
        assert bucket.read(name, 1 << 20) == folder.read(name, 1 << 20), name
    assert sum(name.endswith(".safetensors") for name in names) > 1


class RangeCounter(BucketStore):
    """Counts the bytes of tensors that are read."""

    num_bytes = 0

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        RangeCounter.num_bytes += stop - start
        return super().read_range(name, start, stop)


def test_parameters_and_small_files_are_read_from_a_bucket(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture, path = Fixture("llama"), f"{root}/base"
    bucket, own = open_store(path), ObjectStore()
    for name in fixture.weights.store.list_files(""):
        bucket.write(name, fixture.weights.store.read_chunks(name))
    bucket.write("tokenizer.json", (b"{}",))
    shapes = fixture.shapes(all_axes_mesh())
    source = InitializeFrom(hugging_face=HuggingFaceSource(path=path))
    base = BaseParams(resolve(fixture.model), shapes, jnp.float32)

    found = load_published_params(source, fixture.model, base, random_params(shapes), own, is_leader=True)

    assert jax.tree.all(jax.tree.map(np.array_equal, found.params, fixture.load()))
    assert found.source == f"21 tensors of {path}"
    kept = {"config.json", "generation_config.json", "tokenizer.json"}
    assert {entry.name for entry in own.list_folder("huggingface")} == kept
    assert inspect_weights(path).missing == ()

    monkeypatch.setattr(bucket_store, "BucketStore", RangeCounter)
    weights = open_weights(open_store(path))
    RangeCounter.num_bytes = 0
    name = "model.embed_tokens.weight"
    rows, width = weights.tensors[name].shape
    region = weights.read(name, ((2, 4), (0, width)))
    assert RangeCounter.num_bytes == 2 * width * 4 < rows * width * 4
    assert np.array_equal(region, np.asarray(found.params["embedding"])[2:4])


def fill(shapes: Params, seed: int | None) -> Params:
    """Return random parameters with the shapes, formats and shardings of `shapes`; None: zeros."""
    numbers = np.random.default_rng(seed)

    def make(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        drawn = numbers.normal(size=leaf.shape) if seed is not None else np.zeros(leaf.shape)
        return jax.device_put(drawn.astype(leaf.dtype), leaf.sharding)

    filled: Params = jax.tree.map(make, shapes)
    return filled


def test_adapters_are_exported_to_a_bucket_and_read_there(root: str) -> None:
    path, plain = f"{root}/adapter", spec_of(Fixture("llama"))
    params, zeros = fill(shapes_of(plain), 4), fill(shapes_of(plain), None)
    target = ExportTarget(open_store(path), "float32", adapter="peft")
    export_model(plain, gather_from(params), ObjectStore(), target, ALONE)
    source = InitializeFrom(hugging_face=HuggingFaceSource(path=f"{root}/base"), adapter=AdapterSource(path=path))
    checkpoint = plain.checkpoint.model_copy(update={"initialize_from": source})

    found = load_adapters(plain.model_copy(update={"checkpoint": checkpoint}), zeros, shapes_of(plain))

    for (place, leaf), want in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(params), strict=True):
        if "_lora_" in tensor_name(place):
            np.testing.assert_array_equal(leaf, want, err_msg=tensor_name(place))
