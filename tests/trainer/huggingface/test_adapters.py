"""LoRA adapters in files: merged into exported matrices, alone for PEFT, and read again as the start of a job."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture, all_axes_mesh, to_files
from tests.support.trainer.lora import merge
from tests.support.trainer.training import numpy_tree, spec_with
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.checkpoint import AdapterSource, HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.lora import Lora
from trainingjob_trainer.huggingface.adapter_files import load_adapters
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.hub_download import ADAPTER
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.huggingface.safetensors import TensorEntry, read_header
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.decoder import Params, split_model
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.parallel.sharding import param_shardings
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

ALONE = ProcessGroup(0, 1)
LORA: dict[str, Any] = {"rank": 2, "alpha": 6, "targets": ("*.attention.*", "*.mlp.down")}
FACTOR = 3.0


def spec_of(fixture: Fixture, adapter: Path | None = None, **lora: Any) -> TrainingJobSpec:
    source = InitializeFrom(
        hugging_face=HuggingFaceSource(path="/models/llama"),
        adapter=AdapterSource(path=str(adapter)) if adapter else None,
    )
    spec = spec_with()
    checkpoint = spec.checkpoint.model_copy(update={"initialize_from": source})
    return spec.model_copy(update={"model": fixture.model, "lora": Lora(**LORA | lora), "checkpoint": checkpoint})


def shapes_of(spec: TrainingJobSpec) -> Params:
    model = split_model(resolve_network(spec), spec.precision, spec.memory, "cpu")
    shardings = param_shardings(model.axes, model.shapes, all_axes_mesh(), RULES)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), model.shapes, shardings
    )


def random_params(spec: TrainingJobSpec, seed: int) -> Params:
    """Return parameters whose adapters have an effect, over eight devices."""
    shapes, numbers = shapes_of(spec), np.random.default_rng(seed)
    model = split_model(resolve_network(spec), spec.precision, spec.memory, "cpu")
    params = jax.jit(lambda: model.init(seed), out_shardings=jax.tree.map(lambda leaf: leaf.sharding, shapes))()

    def fill(path: Any, leaf: jax.Array) -> jax.Array:
        if not tensor_name(path).endswith("_lora_b"):
            return leaf
        return jax.device_put(numbers.normal(0, 0.3, leaf.shape).astype(np.float32), leaf.sharding)

    return jax.tree_util.tree_map_with_path(fill, params)


def export(spec: TrainingJobSpec, params: Params, folder: Path, adapter: Any = "merged") -> None:
    target = ExportTarget(open_store(folder), "float32", adapter=adapter)
    export_model(spec, gather_from(params), open_store(folder / "job"), target, ALONE)


@pytest.mark.thorough
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2"])
def test_merged_weights_are_those_of_the_base_with_its_adapters(
    name: str, quantization: str | None, tmp_path: Path
) -> None:
    fixture = Fixture(name)
    targets = ("*.attention.*",) if name == "mixtral" else LORA["targets"]
    spec = spec_of(fixture, targets=targets, base_quantization=quantization)
    params = random_params(spec, 4)

    export(spec, params, tmp_path)

    plain = merge(numpy_tree(params), FACTOR)
    named = {tensor_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(plain)}
    exported = open_weights(open_store(tmp_path))
    for tensor, want in to_files(named, fixture.binding).items():
        found = exported.read(tensor, tuple((0, size) for size in want.shape))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_adapters_alone_have_the_files_of_peft(tmp_path: Path) -> None:
    spec = spec_of(Fixture("llama"))
    params = random_params(spec, 4)

    export(spec, params, tmp_path, "peft")

    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 6, "/models/llama")
    assert config["target_modules"] == ["down_proj", "k_proj", "o_proj", "q_proj", "v_proj"]
    header = read_header(open_store(tmp_path), "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    query = np.asarray(params["layers"]["attention"]["query_lora_b"])[1].reshape(2, 32)
    assert len(header) == 2 * 5 * 2
    np.testing.assert_array_equal(read_whole(tmp_path, header[name]), query.T)


def read_whole(folder: Path, entry: TensorEntry) -> np.ndarray:
    return entry.read(open_store(folder), tuple((0, size) for size in entry.shape))


def test_one_kind_of_export_deletes_the_other(tmp_path: Path) -> None:
    spec = spec_of(Fixture("llama"))
    params = random_params(spec, 4)

    export(spec, params, tmp_path, "peft")
    export(spec, params, tmp_path)

    assert not list(tmp_path.glob("adapter*"))
    export(spec, params, tmp_path, "peft")
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_exported_adapters_are_the_start_of_another_job(quantization: str | None, tmp_path: Path) -> None:
    fixture = Fixture("llama")
    first = random_params(spec_of(fixture), 4)
    export(spec_of(fixture), first, tmp_path, "peft")
    spec = spec_of(fixture, tmp_path, base_quantization=quantization)

    found = load_adapters(spec, random_params(spec, 5), shapes_of(spec))

    for part, name in (("attention", "query_lora_a"), ("attention", "out_lora_b"), ("mlp", "down_lora_b")):
        np.testing.assert_array_equal(found["layers"][part][name], first["layers"][part][name])
    assert found["layers"]["attention"]["query"].sharding == shapes_of(spec)["layers"]["attention"]["query"].sharding


def test_downloaded_adapters_are_those_of_their_repository(tmp_path: Path) -> None:
    first = random_params(spec_of(Fixture("llama")), 4)
    run = tmp_path / "run"
    export(spec_of(Fixture("llama")), first, run / ADAPTER.folder, "peft")
    spec = spec_of(Fixture("llama"))
    source = InitializeFrom(uri="/unused", adapter=AdapterSource(repository="tests/adapter"))
    checkpoint = spec.checkpoint.model_copy(update={"uri": str(run), "initialize_from": source})
    spec = spec.model_copy(update={"checkpoint": checkpoint})

    found = load_adapters(spec, random_params(spec, 5), shapes_of(spec))

    name = "query_lora_a"
    np.testing.assert_array_equal(found["layers"]["attention"][name], first["layers"]["attention"][name])
    with pytest.raises(TrainingError, match=r"^tests/adapter holds adapters of another job") as caught:
        load_adapters(spec.model_copy(update={"lora": Lora(**LORA | {"rank": 4})}), {}, {})
    assert caught.value.path == "spec.checkpoint.initializeFrom.adapter.repository"


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 4}, "r is 2, but `spec.lora.rank` is 4"),
        ({"alpha": 5}, "lora_alpha is 6, but `spec.lora.alpha` is 5"),
        ({"targets": ("*.mlp.*",)}, "gate_proj.lora_A.weight is missing"),
        ({"targets": ("*.query",)}, "has no place in `spec.lora.targets`"),
    ],
)
def test_adapters_of_another_job_are_rejected(lora: dict[str, Any], message: str, tmp_path: Path) -> None:
    fixture = Fixture("llama")
    export(spec_of(fixture), random_params(spec_of(fixture), 4), tmp_path, "peft")
    spec = spec_of(fixture, tmp_path, **lora)

    with pytest.raises(TrainingError, match="holds adapters of another job") as caught:
        load_adapters(spec, {}, {})

    assert message in str(caught.value)
    assert (caught.value.path, caught.value.reason) == (
        "spec.checkpoint.initializeFrom.adapter.path",
        FailureReason.CONFIG,
    )


def test_adapters_of_another_base_are_rejected_with_shapes(tmp_path: Path) -> None:
    fixture = Fixture("llama")
    export(spec_of(fixture), random_params(spec_of(fixture), 4), tmp_path, "peft")
    fixture.model = fixture.model.model_copy(update={"embed_dim": 24})

    with pytest.raises(TrainingError, match=r"q_proj\.lora_A\.weight is 2x16, not 2x24"):
        load_adapters(spec_of(fixture, tmp_path), {}, {})


def test_a_folder_without_adapters_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"has no adapter that can be read: adapter_config\.json is missing"):
        load_adapters(spec_of(Fixture("llama"), tmp_path), {}, {})


def test_adapters_of_a_matrix_that_holds_several_are_merged_alone(tmp_path: Path) -> None:
    spec = spec_of(Fixture("gpt2"), targets=("*.query",))
    params = random_params(spec, 4)

    with pytest.raises(TrainingError, match=r"adapters of layers\.attention\.query, which share one there"):
        export(spec, params, tmp_path, "peft")
    export(spec, params, tmp_path)
