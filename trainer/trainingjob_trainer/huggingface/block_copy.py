"""Copies between the layouts of files and of our tensors, in host memory."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from trainingjob_api.huggingface.layout import Copy, Region
from trainingjob_api.huggingface.rule import Piece
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder


def run_copy(copy: Copy, source: np.ndarray, target: np.ndarray) -> None:
    """Copy what was read into its place in a block of the target, and convert its format."""
    moved = source.reshape(copy.factors)[to_slices(copy.chosen)].reshape(copy.axes).transpose(copy.order)
    target.reshape(copy.places)[to_slices(copy.placed)] = moved.reshape(copy.extents)


def group_copies(
    pieces: Sequence[Piece], blocks: Mapping[Region, np.ndarray]
) -> Mapping[str, list[tuple[Copy, np.ndarray]]]:
    """Return the copies from each tensor in the files into blocks, which are regions of our tensor."""
    grouped: dict[str, list[tuple[Copy, np.ndarray]]] = defaultdict(list)
    for piece in pieces:
        for region, block in blocks.items():
            copy = piece.plan_import(region)
            if copy is not None:
                grouped[piece.file_name].append((copy, block))
    return grouped


def read_into(weights: WeightsFolder, name: str, copies: Sequence[tuple[Copy, np.ndarray]]) -> None:
    """Read the range of a tensor that covers all copies, and run them."""
    spans = list(zip(*(copy.region for copy, _ in copies), strict=True))
    region = tuple((min(start for start, _ in span), max(stop for _, stop in span)) for span in spans)
    read = weights.read(name, region)
    for copy, block in copies:
        inside = tuple(
            (start - first, stop - first) for (start, stop), (first, _) in zip(copy.region, region, strict=True)
        )
        run_copy(copy, read[to_slices(inside)], block)


def to_slices(region: Region) -> tuple[slice, ...]:
    """Return the index of a region."""
    return tuple(slice(*span) for span in region)
