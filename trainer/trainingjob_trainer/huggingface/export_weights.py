"""Files of a model from sharded parameters. No host holds more than one tensor of a file at a time.

The processes of a world write the files in turn. Where the numbers of a tensor come from all processes, all of them go
through all tensors in the same order, also after an error.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from trainingjob_api.huggingface.layout import Region, Shape
from trainingjob_api.huggingface.peft import CONFIG_FILE as ADAPTER_CONFIG_FILE
from trainingjob_api.huggingface.rule import Binding
from trainingjob_api.network.tensor import Storage
from trainingjob_trainer.huggingface.block_copy import run_copy
from trainingjob_trainer.huggingface.gather_region import gather_region
from trainingjob_trainer.huggingface.safetensors import DTYPES, FLOAT32, encode_header
from trainingjob_trainer.huggingface.weights_folder import INDEX_FILE, WEIGHTS_FILE
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.port import Store

MAX_FILE_BYTES = 5_000_000_000
"""Size of the largest file, unless one tensor is larger."""
WEIGHT_FILE_NAME = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors")
FILE_SECONDS = 1800
"""Seconds that the first process waits for the last before each file."""


@dataclass(frozen=True)
class WeightFile:
    """One file to write."""

    name: str
    tensors: tuple[str, ...]
    """In their order in the file."""


@dataclass(frozen=True)
class ExportPlan:
    """The files that hold the tensors of a network in one format."""

    binding: Binding
    dtype: str
    """One of `DTYPES`. Tensors that training stores in float32 keep that format, whatever the others have."""
    max_file_bytes: int = MAX_FILE_BYTES
    file_name: str = WEIGHTS_FILE
    """Name of the only file. Adapters have another one, and are never split."""

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of each tensor in the files, in their order: layer by layer."""
        pieces = self.binding.by_file_name
        return {name: pieces[name][0].file_shape for name in sorted(pieces, key=_natural_order)}

    @cached_property
    def files(self) -> tuple[WeightFile, ...]:
        """Return the files."""
        groups: list[list[str]] = []
        space = 0
        for name in self.shapes:
            size = self._size(name)
            if not groups or (size > space and self.file_name == WEIGHTS_FILE):
                groups.append([])
                space = self.max_file_bytes
            groups[-1].append(name)
            space -= size
        if len(groups) == 1:
            return (WeightFile(self.file_name, tuple(groups[0])),)
        return tuple(
            WeightFile(f"model-{number:05}-of-{len(groups):05}.safetensors", tuple(group))
            for number, group in enumerate(groups, start=1)
        )

    def encode_index(self) -> bytes:
        """Return the content of the index."""
        places = {name: file.name for file in self.files for name in file.tensors}
        total = sum(map(self._size, self.shapes))
        return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2).encode()

    def encode_header(self, file: WeightFile) -> bytes:
        """Return the beginning of a file."""
        return encode_header({name: (self.find_dtype(name), self.shapes[name]) for name in file.tensors})

    def find_dtype(self, name: str) -> str:
        """Return the format of a tensor in the files, one of `DTYPES`."""
        pieces = self.binding.by_file_name[name]
        return FLOAT32 if any(piece.tensor.storage is Storage.FLOAT32 for piece in pieces) else self.dtype

    def _size(self, name: str) -> int:
        return DTYPES[self.find_dtype(name)].itemsize * math.prod(self.shapes[name])


type Gather = Callable[[str, Region], np.ndarray]
"""Returns a region of one of our tensors, on every process."""


def gather_from(params: Any) -> Gather:
    """Return what gathers regions of a tree of sharded parameters; all processes call it together."""
    arrays = {tensor_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    return lambda name, region: gather_region(arrays[name], region)


def write_weight_files(
    plan: ExportPlan, gather: Gather, store: Store, peers: ProcessGroup
) -> OSError | None:  # None: this process wrote its files
    """Write all files of a plan; all processes call this together.

    An error is returned, because the other processes still need the numbers of this one.
    """
    error: OSError | None = None
    for number, file in enumerate(plan.files):
        peers.barrier(f"export/{file.name}", FILE_SECONDS)  # reports progress too
        tensors = _yield_tensors(plan, file, gather)
        if number % peers.num_processes == peers.process and error is None:
            try:
                store.write(file.name, _prepend(plan.encode_header(file), tensors))
            except OSError as caught:
                error = caught
        for _ in tensors:  # the other processes need the numbers of this one
            pass
    return error


def write_own_files(plan: ExportPlan, gather: Gather, store: Store, process: int, num_processes: int) -> None:
    """Write the files of a plan that fall to one process. `gather` needs no other process.

    Raises:
        OSError: the store refuses a write.
    """
    for file in plan.files[process::num_processes]:
        store.write(file.name, _prepend(plan.encode_header(file), _yield_tensors(plan, file, gather)))


def clear_weight_files(store: Store) -> None:
    """Delete the weights of an earlier export: first the index, without which readers do not take the others."""
    names = {entry.name for entry in store.list_folder()}
    for name in (ADAPTER_CONFIG_FILE, INDEX_FILE, *sorted(filter(WEIGHT_FILE_NAME.fullmatch, names))):
        store.delete(name)


def write_index(plan: ExportPlan, store: Store) -> None:
    """Write the index if there are several files. It makes readers find them, so that it is written last."""
    if len(plan.files) > 1:
        store.write(INDEX_FILE, [plan.encode_index()])


def _yield_tensors(plan: ExportPlan, file: WeightFile, gather: Gather) -> Iterator[bytes]:
    """Yield the numbers of each tensor of a file."""
    for name in file.tensors:
        tensor = np.empty(plan.shapes[name], DTYPES[plan.find_dtype(name)])
        for piece in plan.binding.by_file_name[name]:
            copy = piece.plan_export()
            run_copy(copy, gather(piece.tensor.name, copy.region), tensor)
        yield tensor.tobytes()


def _prepend(header: bytes, tensors: Iterator[bytes]) -> Iterator[bytes]:
    yield header
    yield from tensors


def _natural_order(name: str) -> str:
    """Return a key that sorts layer 2 before layer 10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(6), name)
