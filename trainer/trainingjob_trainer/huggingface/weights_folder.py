"""The files of a model in the layout of the hub: its configuration, and its tensors in one or several files."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_api.huggingface.layout import Region
from trainingjob_trainer.huggingface.quantized import StoredTensor, join_quantized
from trainingjob_trainer.huggingface.safetensors import TensorEntry, WeightsError, read_header
from trainingjob_trainer.store.port import Store

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000
READERS = 8
"""Files or tensors that are read at the same time."""


@dataclass(frozen=True)
class WeightsFolder:
    """The tensors below the root of a store, by name. Nothing is kept in memory but their places."""

    store: Store
    tensors: Mapping[str, StoredTensor]

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Return the content of `config.json`."""
        return read_json(self.store, CONFIG_FILE)

    def read(self, name: str, region: Region) -> np.ndarray:
        """Return a region of a tensor in the format of the file; float32 for a quantized one."""
        return self.tensors[name].read(self.store, region)


def open_weights(store: Store) -> WeightsFolder:
    """Return the weights below the root of a store, from the headers of their files.

    Raises:
        WeightsError: a file is missing or damaged.
        OSError: the store does not respond.
    """
    files = _list_weight_files(store)
    try:
        with ThreadPoolExecutor(READERS) as pool:
            headers = list(pool.map(lambda file: read_header(store, file), files))
    except UntrustedFileError as error:
        advice = "Links to a cache are not followed: `hf download --local-dir` writes files."
        raise WeightsError(f"{error}. {advice}") from error
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        duplicates = sorted(tensors.keys() & header.keys())
        if duplicates:
            raise WeightsError(
                f"two files hold {duplicates[0]}: {tensors[duplicates[0]].file} and {header[duplicates[0]].file}"
            )
        tensors |= header
    return WeightsFolder(store, join_quantized(tensors))


def read_json(store: Store, name: str) -> Mapping[str, Any]:
    """Return the object in a JSON file.

    Raises:
        WeightsError: the file is missing, too large, or holds no object.
        OSError: the store does not respond.
    """
    try:
        content = json.loads(store.read(name, MAX_JSON_BYTES))
    except FileNotFoundError as error:
        raise WeightsError(f"{name} is missing") from error
    except UntrustedFileError as error:
        raise WeightsError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{name} must hold a JSON object")
    return content


def _list_weight_files(store: Store) -> list[str]:
    """Return the files that hold tensors: those of the index, or the only one.

    Raises:
        WeightsError: there are none, or one of the index is missing.
    """
    names = {entry.name for entry in store.list_folder() if not entry.is_folder}
    if INDEX_FILE in names:
        places = read_json(store, INDEX_FILE).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise WeightsError(f"{INDEX_FILE} has no `weight_map` of file names")
        files = sorted(set(places.values()))
        missing = [file for file in files if file not in names]
        if missing:
            raise WeightsError(f"{INDEX_FILE} names {missing[0]}, which is missing")
        return files
    if WEIGHTS_FILE in names:
        return [WEIGHTS_FILE]
    others = sorted(name for name in names if name.endswith((".bin", ".pth", ".gguf", ".safetensors")))
    found = f" It has: {', '.join(others[:3])}." if others else ""
    raise WeightsError(f"{store.root} has neither {INDEX_FILE} nor {WEIGHTS_FILE}.{found}")
