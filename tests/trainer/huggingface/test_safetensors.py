"""Files of safetensors: regions are read by range, and damaged files are errors that name the file."""

import json
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.trainer.object_store import ObjectStore
from trainingjob_trainer.huggingface.safetensors import (
    STORED_DTYPES,
    WeightsError,
    encode_header,
    read_header,
    read_region,
)
from trainingjob_trainer.huggingface.weights_folder import open_weights

CUBE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


class CountingStore(ObjectStore):
    """A store that counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        content = super().read_range(name, start, stop)
        self.bytes_read += len(content)
        return content


def encode(tensors: dict[str, np.ndarray]) -> bytes:
    names = {dtype: name for name, dtype in STORED_DTYPES.items()}
    header = encode_header({name: (names[array.dtype], array.shape) for name, array in tensors.items()})
    return header + b"".join(array.tobytes() for array in tensors.values())


def store_with(tensors: dict[str, np.ndarray], file: str = "model.safetensors") -> CountingStore:
    store = CountingStore()
    store.objects[file] = encode(tensors)
    return store


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_of_all_formats_are_read(dtype: Any) -> None:
    weights = open_weights(store_with({"first": np.ones(3, np.float32), "cube": CUBE.astype(dtype)}))

    assert np.array_equal(weights.read("cube", ((0, 3), (0, 4), (0, 5))), CUBE.astype(dtype))


REGIONS = {
    "rows": (((1, 3), (0, 4), (0, 5)), 2 * 20),
    "one row": (((2, 3), (0, 4), (0, 5)), 20),
    "rows of one matrix": (((2, 3), (1, 3), (0, 5)), 2 * 5),
    "a part of one row": (((2, 3), (1, 2), (2, 4)), 2),
    "columns": (((1, 3), (0, 4), (2, 4)), 2 * 20),
}


@pytest.mark.parametrize(("region", "numbers"), REGIONS.values(), ids=REGIONS)
def test_a_region_is_read_without_the_other_rows(region: tuple[tuple[int, int], ...], numbers: int) -> None:
    store = store_with({"cube": CUBE})
    weights = open_weights(store)
    store.bytes_read = 0

    found = weights.read("cube", region)

    assert np.array_equal(found, CUBE[tuple(slice(*span) for span in region)])
    assert store.bytes_read == numbers * 4


def test_a_scalar_and_an_empty_tensor_are_read() -> None:
    weights = open_weights(store_with({"scalar": np.float32(3).reshape(()), "empty": np.zeros((0, 2), np.float32)}))

    assert weights.read("scalar", ()) == 3
    assert weights.read("empty", ((0, 0), (0, 2))).shape == (0, 2)


def change_header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def apply(content: bytes) -> bytes:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return apply


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "model.safetensors is no safetensors file, or truncated: 0 bytes"),
    "a few bytes": (lambda content: content[:5], "is no safetensors file, or truncated"),
    "a truncated header": (lambda content: content[:40], "is no safetensors file, or truncated: 40 bytes"),
    "truncated numbers": (lambda content: content[:-1], "is truncated: .* and cube ends at byte"),
    "another format": (lambda content: b"PK\x03\x04" + b"\xff" * 100, "is no safetensors file"),
    "a header that is no JSON": (lambda content: content[:8] + b"x" + content[9:], "header of .* is damaged"),
    "a header that is a list": (
        lambda content: struct.pack("<Q", 2) + b"[]" + content,
        "header of model.safetensors is damaged",
    ),
    "no shape": (change_header(lambda header: header["cube"].pop("shape")), "header of .* is damaged"),
    "a shape of other numbers": (
        change_header(lambda header: header["cube"].update(shape=[3, 4, 6])),
        "header of .* is damaged",
    ),
    "more dims than an array has": (
        change_header(lambda header: header["cube"]["shape"].extend([1] * 62)),
        "header of .* is damaged",
    ),
    "an infinite shape": (
        change_header(lambda header: header["cube"].update(shape=[float("inf")])),
        "header of .* is damaged",
    ),
    "a shape of texts": (
        change_header(lambda header: header["cube"].update(shape="345")),
        "header of .* is damaged",
    ),
    "a huge number of bytes": (
        change_header(lambda header: header["cube"].update(dtype="X", data_offsets=[0, 10**30])),
        "header of .* is damaged",
    ),
    "negative offsets": (
        change_header(lambda header: header["cube"].update(data_offsets=[-240, 0])),
        "header of .* is damaged",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_an_error_that_names_it(damage: Callable[[bytes], bytes], message: str) -> None:
    store = store_with({"cube": CUBE})
    store.objects["model.safetensors"] = damage(store.objects["model.safetensors"])

    with pytest.raises(WeightsError, match=message):
        read_header(store, "model.safetensors")


def test_a_file_that_becomes_shorter_is_an_error() -> None:
    store = store_with({"cube": CUBE})
    entry = read_header(store, "model.safetensors")["cube"]
    store.objects["model.safetensors"] = store.objects["model.safetensors"][:-4]

    with pytest.raises(WeightsError, match="is truncated: it ends before byte"):
        read_region(store, entry, ((2, 3), (0, 4), (0, 5)))


def sharded_store() -> CountingStore:
    store = store_with({"a": CUBE}, "model-00001-of-00002.safetensors")
    store.objects["model-00002-of-00002.safetensors"] = encode({"b": CUBE + 1})
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    store.objects["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    return store


def test_tensors_are_found_in_all_files_of_an_index() -> None:
    weights = open_weights(sharded_store())

    assert weights.tensors.keys() == {"a", "b"}
    assert np.array_equal(weights.read("b", ((0, 3), (0, 4), (0, 5))), CUBE + 1)


def drop(store: CountingStore, name: str) -> None:
    del store.objects[name]


FOLDERS: dict[str, tuple[Callable[[CountingStore], object], str]] = {
    "a missing file": (
        lambda store: drop(store, "model-00002-of-00002.safetensors"),
        "index.json names model-00002-of-00002.safetensors, which is missing",
    ),
    "a tensor in two files": (
        lambda store: store.objects.update({"model-00002-of-00002.safetensors": encode({"a": CUBE})}),
        "two files hold a: model-00001-of-00002.safetensors and model-00002-of-00002.safetensors",
    ),
    "an index without names": (
        lambda store: store.objects.update({"model.safetensors.index.json": b"{}"}),
        "index.json has no `weight_map` of file names",
    ),
    "an index of numbers": (
        lambda store: store.objects.update({"model.safetensors.index.json": b'{"weight_map": {"a": 1}}'}),
        "index.json has no `weight_map` of file names",
    ),
    "a damaged index": (
        lambda store: store.objects.update({"model.safetensors.index.json": b"{"}),
        "index.json is damaged: ",
    ),
    "an index that is a list": (
        lambda store: store.objects.update({"model.safetensors.index.json": b"[]"}),
        "index.json must hold a JSON object",
    ),
    "files without an index": (
        lambda store: drop(store, "model.safetensors.index.json"),
        "has neither model.safetensors.index.json nor model.safetensors. It has: model-00001-of-00002.safetensors, ",
    ),
    "nothing": (lambda store: store.objects.clear(), "bucket has neither .* nor model.safetensors.$"),
}


@pytest.mark.parametrize(("change", "message"), FOLDERS.values(), ids=FOLDERS)
def test_an_incomplete_folder_is_an_error(change: Callable[[CountingStore], object], message: str) -> None:
    store = sharded_store()
    change(store)

    with pytest.raises(WeightsError, match=message):
        open_weights(store)


def test_a_missing_configuration_is_an_error() -> None:
    with pytest.raises(WeightsError, match=r"config.json is missing"):
        _ = open_weights(sharded_store()).config
