"""Sharded parameters from the files of a model. Each host reads the numbers of its devices, and each of them once."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from trainingjob_api.huggingface.layout import Region
from trainingjob_api.huggingface.rule import Binding, Piece
from trainingjob_trainer.huggingface.block_copy import group_copies, read_into
from trainingjob_trainer.huggingface.safetensors import DTYPES
from trainingjob_trainer.huggingface.weights_folder import READERS, WeightsFolder
from trainingjob_trainer.models.trainable import tensor_name


@dataclass(frozen=True)
class TensorMatch:
    """How the tensors of files fit those of a network."""

    matched: tuple[str, ...]
    """Tensors of the files that are read."""
    missing: tuple[str, ...]
    """Tensors that the files lack."""
    unused: tuple[str, ...]
    """Tensors of the files that the network has no place for."""
    misfits: tuple[str, ...]
    """Texts about tensors of another shape or an unsupported format."""
    incomplete: tuple[str, ...]
    """Our tensors that need a missing one."""

    def list_partial(self, binding: Binding) -> list[str]:
        """Return our incomplete tensors of which the files have parts, such as some of the layers."""
        matched = set(self.matched)
        return [
            name for name in self.incomplete if any(piece.file_name in matched for piece in binding.by_tensor[name])
        ]


def add_prefix(weights: WeightsFolder, prefix: str) -> WeightsFolder:
    """Return the weights with names that all begin with a prefix, which files may lack."""
    if not prefix or any(name.startswith(prefix) for name in weights.tensors):
        return weights
    return replace(weights, tensors={f"{prefix}{name}": tensor for name, tensor in weights.tensors.items()})


def match_tensors(weights: WeightsFolder, binding: Binding, derived: Iterable[str] = ()) -> TensorMatch:
    """Return how the tensors of files fit those of a network. Names with an ending in `derived` are ignored."""
    matched, missing, misfits = [], [], []
    for name, pieces in binding.by_file_name.items():
        entry = weights.tensors.get(name)
        if entry is None:
            missing.append(name)
        elif entry.shape != pieces[0].file_shape:
            misfits.append(f"{name} is {_format_shape(entry.shape)}, not {_format_shape(pieces[0].file_shape)}")
        elif entry.dtype not in DTYPES:
            misfits.append(f"{name} has the format {entry.dtype}, not one of {', '.join(DTYPES)}")
        else:
            matched.append(name)
    unused = (name for name in weights.tensors.keys() - binding.by_file_name.keys() if not name.endswith((*derived,)))
    incomplete = {piece.tensor.name for name in missing for piece in binding.by_file_name[name]}
    return TensorMatch(tuple(matched), tuple(missing), tuple(sorted(unused)), tuple(misfits), tuple(sorted(incomplete)))


def import_params(weights: WeightsFolder, binding: Binding, abstract_params: Any) -> Any:
    """Return parameters with the shapes, formats and shardings of `abstract_params`; the files must have them all.

    Raises:
        WeightsError: a file has become shorter.
        OSError: the store does not respond.
    """

    def load(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return import_array(weights, binding.by_tensor[tensor_name(path)], leaf)

    return jax.tree_util.tree_map_with_path(load, abstract_params)


def import_array(
    weights: WeightsFolder,
    pieces: Sequence[Piece],
    abstract_array: jax.ShapeDtypeStruct,
    initial: jax.Array | None = None,
) -> jax.Array:
    """Return one of our tensors with the shape, format and sharding of `abstract_array`.

    The memory of the host holds the shards of its devices, and the tensors that are read at the same time. `initial`
    has the format and the values of what no piece is a part of; it is consumed. None: the pieces are the whole tensor.

    Raises:
        WeightsError: a file has become shorter.
        OSError: the store does not respond.
    """
    regions = {
        device: _to_region(index, abstract_array.shape)
        for device, index in abstract_array.sharding.addressable_devices_indices_map(abstract_array.shape).items()
    }
    if initial is None:
        blocks = {region: _allocate(region, abstract_array.dtype) for region in set(regions.values())}
    else:
        blocks = {regions[shard.device]: np.array(shard.data) for shard in initial.addressable_shards}
        initial.delete()  # both may not fit in memory
    jobs = [(name, list(copies)) for name, copies in group_copies(pieces, blocks).items()]
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(lambda job: read_into(weights, *job), jobs):
            pass
    shards = [jax.device_put(blocks[region], device) for device, region in regions.items()]
    return jax.make_array_from_single_device_arrays(abstract_array.shape, abstract_array.sharding, shards)


def _to_region(index: tuple[slice, ...], shape: tuple[int, ...]) -> Region:
    return tuple(dim_slice.indices(size)[:2] for dim_slice, size in zip(index, shape, strict=True))


def _allocate(region: Region, dtype: Any) -> np.ndarray:
    return np.empty([stop - start for start, stop in region], dtype)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"
