"""Export: the files hold the numbers of the import, bit by bit, whatever the mesh and the size of the files."""

import errno
import json
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.support.trainer.huggingface import Fixture, all_axes_mesh
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.huggingface.test_numerics import FAMILIES
from trainingjob_trainer.huggingface.export_weights import ExportPlan, gather_from, write_index, write_weight_files
from trainingjob_trainer.huggingface.gather_region import gather_region
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.runtime.process_group import ProcessGroup

ALONE = ProcessGroup(0, 1)


def export(fixture: Fixture, params: Any, **options: Any) -> ObjectStore:
    store = ObjectStore()
    plan = ExportPlan(fixture.binding, **{"dtype": "F32", **options})
    assert write_weight_files(plan, gather_from(params), store, ALONE) is None
    write_index(plan, store)
    return store


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_import_then_export_is_bitwise_identical(name: str) -> None:
    fixture = Fixture(name)

    store = export(fixture, fixture.load())

    exported = open_weights(store)
    assert exported.tensors.keys() == fixture.weights.tensors.keys()
    for tensor, entry in exported.tensors.items():
        whole = tuple((0, size) for size in entry.shape)
        assert exported.read(tensor, whole).tobytes() == fixture.weights.read(tensor, whole).tobytes(), tensor
    assert store.objects.keys() == {"model.safetensors"}


def test_files_are_as_large_as_allowed_and_listed_in_an_index() -> None:
    fixture = Fixture("llama")

    store = export(fixture, fixture.load(), max_file_bytes=8000)

    index = json.loads(store.objects.pop("model.safetensors.index.json"))
    names = [f"model-{number:05}-of-{len(store.objects):05}.safetensors" for number in range(1, len(store.objects) + 1)]
    assert sorted(store.objects) == names
    assert len(names) == 5
    total = sum(entry.stop - entry.start for entry in fixture.weights.tensors.values())
    assert index["metadata"]["total_size"] == total
    assert set(index["weight_map"].values()) == set(names)
    for content in store.objects.values():
        assert len(content) - 8 - int.from_bytes(content[:8], "little") <= 8000


def test_biases_of_the_choice_of_experts_stay_in_float32() -> None:
    fixture = Fixture("deepseek_v3")

    store = export(fixture, fixture.load(), dtype="BF16")

    exported = open_weights(store)
    biases = [name for name in exported.tensors if name.endswith("e_score_correction_bias")]
    assert biases
    assert {name for name, entry in exported.tensors.items() if entry.dtype == "F32"} == set(biases)
    for name in biases:
        assert exported.read(name, ((0, 6),)).tobytes() == fixture.weights.read(name, ((0, 6),)).tobytes()


def test_layers_are_in_the_order_of_their_numbers() -> None:
    fixture = Fixture("llama")
    names = list(ExportPlan(fixture.binding, "F32").shapes)

    assert [name.split(".")[2] for name in names if "q_proj" in name] == ["0", "1"]
    many = ExportPlan(fixture.binding, "F32")
    pieces = {name.replace("layers.1.", "layers.10."): value for name, value in fixture.binding.by_file_name.items()}
    many.binding.__dict__["by_file_name"] = {**pieces, **fixture.binding.by_file_name}
    ordered = [name.split(".")[2] for name in many.shapes if "q_proj" in name]
    assert ordered == ["0", "1", "10"]


def test_a_tensor_that_is_larger_than_a_file_has_its_own() -> None:
    plan = ExportPlan(Fixture("llama").binding, "F32", max_file_bytes=1)

    assert {len(file.tensors) for file in plan.files} == {1}


def test_numbers_are_exported_in_another_format() -> None:
    fixture = Fixture("llama")

    exported = open_weights(export(fixture, fixture.load(), dtype="BF16"))

    entry = exported.tensors["model.norm.weight"]
    exact = fixture.weights.read("model.norm.weight", ((0, 16),))
    assert entry.dtype == "BF16"
    assert np.array_equal(exported.read("model.norm.weight", ((0, 16),)), exact.astype(jax.numpy.bfloat16))


@pytest.mark.parametrize("spec", [(), ("fsdp",), ("fsdp", "tensor"), (None, ("tensor", "fsdp")), ("stage",)])
def test_a_region_of_an_array_does_not_depend_on_its_sharding(spec: tuple[Any, ...]) -> None:
    numbers = np.arange(128, dtype=np.float32).reshape(8, 16)
    array = jax.device_put(numbers, NamedSharding(all_axes_mesh(), PartitionSpec(*spec)))

    assert np.array_equal(gather_region(array, ((2, 7), (3, 11))), numbers[2:7, 3:11])


class FullStore(ObjectStore):
    """A store that has no space after its first object."""

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        if self.objects:
            next(iter(chunks))
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, chunks)


def test_a_full_store_is_returned_as_an_error_after_all_numbers_were_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture("llama")
    params = fixture.load()
    gathered = []

    def count(array: jax.Array, region: Any) -> np.ndarray:
        gathered.append(region)
        return gather_region(array, region)

    monkeypatch.setattr("trainingjob_trainer.huggingface.export_weights.gather_region", count)
    plan = ExportPlan(fixture.binding, "F32", max_file_bytes=8000)

    error = write_weight_files(plan, gather_from(params), FullStore(), ALONE)

    assert error is not None
    assert error.errno == errno.ENOSPC
    assert len(gathered) == len(fixture.binding.pieces)
