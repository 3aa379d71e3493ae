"""Rules that map the tensors of a model's files to those of its network, and their binding to one network.

A rule holds for each layer: `{layer}` in the name of a tensor in a file is the number of the layer. `{e}` in it is one
index of the axis `e` of our tensor: files hold each expert alone.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from trainingjob_api.huggingface.layout import (
    Axis,
    Copy,
    Dims,
    Region,
    Shape,
    Sizes,
    fix_axis,
    layout_shape,
    parse_layouts,
    plan_copy,
    whole,
)
from trainingjob_api.network.multi_token_prediction import PREDICTION
from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor

LAYERS = "layers"
"""The axis of a stacked tensor, which `{layer}` in a name stands for."""
LAYER_FIELD = "layer"


@dataclass(frozen=True)
class Rule:
    """One kind of tensor in the files, and what it is in the network."""

    file_name: str
    tensor_name: str
    """Name inside a layer for a tensor of layers, else in the network."""
    layouts: str
    """`LAYOUT IN THE FILE -> LAYOUT IN THE NETWORK`, without the axis of stacked layers."""

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the axes that the name of a file's tensor fixes, apart from the layer."""
        return tuple(name for name in re.findall(r"\{(\w+)\}", self.file_name) if name != LAYER_FIELD)

    @cached_property
    def dims(self) -> tuple[Dims, Dims]:
        """Return the layout in the file, and in the network."""
        return parse_layouts(self.layouts, self.fields)


@dataclass(frozen=True)
class Piece:
    """A part of one tensor in a file, and the part of one of our tensors that it is."""

    file_name: str
    tensor: Tensor
    file_dims: Dims
    tensor_dims: Dims
    sizes: Sizes = field(hash=False)

    @property
    def file_shape(self) -> Shape:
        """Return the shape of the tensor in the file."""
        return layout_shape(self.file_dims, self.sizes)

    def plan_import(self, region: Region) -> Copy | None:  # None: the piece has nothing of the region
        """Return the copy from the file's tensor into a block, which is a region of our tensor."""
        return plan_copy(self.file_dims, self.tensor_dims, self.sizes, region)

    def plan_export(self) -> Copy:
        """Return the copy from our tensor into the whole tensor of the file."""
        copy = plan_copy(self.tensor_dims, self.file_dims, self.sizes, whole(self.file_shape))
        assert copy is not None  # noqa: S101 - every piece is a part of the whole
        return copy


@dataclass(frozen=True)
class Binding:
    """The rules of a family, bound to the tensors of one network."""

    pieces: tuple[Piece, ...]
    unmapped: tuple[str, ...]
    """Our tensors that no rule maps: the family cannot express the network."""

    @cached_property
    def by_file_name(self) -> Mapping[str, tuple[Piece, ...]]:
        """Return the pieces of each tensor in the files."""
        return _group((piece.file_name, piece) for piece in self.pieces)

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Piece, ...]]:
        """Return the pieces of each of our tensors."""
        return _group((piece.tensor.name, piece) for piece in self.pieces)


def bind_rules(rules: Iterable[Rule], network: Network, sizes: Mapping[str, int] = MappingProxyType({})) -> Binding:
    """Return the pieces of all tensors of a network. `sizes` are those of axes that are no dim of our tensor alone.

    A rule fits a tensor with its name and as many dims: an MLP and the experts of a layer have the same names.
    """
    pieces: list[Piece] = []
    unmapped = []
    for tensor, layers, found in _find_rules(rules, network):
        pieces += [piece for rule in found for piece in _bind(rule, tensor, layers, sizes)]
        if not found:
            unmapped.append(tensor.name)
    return Binding(tuple(pieces), tuple(unmapped))


def has_rules(rules: Iterable[Rule], network: Network) -> bool:
    """Return whether each tensor of a network has a rule, without its pieces: a large model has 100,000 of them."""
    return all(found for _, _, found in _find_rules(rules, network))


def _find_rules(rules: Iterable[Rule], network: Network) -> Iterator[tuple[Tensor, range | None, Sequence[Rule]]]:
    """Yield each tensor, the numbers of its layers, and its rules."""
    table: dict[tuple[str, int], list[Rule]] = defaultdict(list)
    for rule in rules:
        table[rule.tensor_name, len(rule.dims[1])].append(rule)
    for tensor, name, layers in _place_tensors(network):
        yield tensor, layers, table[name, len(tensor.shape) - bool(layers)]


def _place_tensors(network: Network) -> Iterator[tuple[Tensor, str, range | None]]:
    """Yield each tensor, its name in the rules, and the numbers of its layers; None: it belongs to no layer."""
    names = {tensor.name: tensor for tensor in network.tensors}
    first = 0
    for group in network.groups:
        for position, block in enumerate(group.pattern):
            prefix, size = group.prefix(position), len(group.pattern)
            layers = range(first + position, first + size * group.repeats, size)
            for tensor in block.tensors:
                yield names.pop(f"{prefix}{tensor.name}"), tensor.name, layers
        first += len(group.pattern) * group.repeats
    if network.prediction:  # files number the modules of further tokens after the layers
        layers = range(first, first + network.prediction.options.depth)
        for tensor in network.prediction.tensors:
            yield names.pop(tensor.name), tensor.name.removeprefix(f"{PREDICTION}.block."), layers
    for name, tensor in names.items():
        yield tensor, name, None


def _bind(rule: Rule, tensor: Tensor, layers: range | None, sizes: Sizes) -> Iterator[Piece]:
    """Yield the pieces of one of our tensors: one for each layer, and for each index of the axes in the file's name."""
    file_dims, dims = rule.dims
    if layers is not None:
        dims = ((Axis(LAYERS),), *dims)
    sizes = dict(sizes) | {
        factors[0].name: size
        for factors, size in zip(dims, tensor.shape, strict=True)
        if len(factors) == 1 and isinstance(factors[0], Axis)
    }
    for index, layer in enumerate(layers or (0,)):
        fixed = dims if layers is None else fix_axis(dims, LAYERS, index, len(layers))
        for values, placed in _fix_fields(fixed, rule.fields, sizes):
            yield Piece(rule.file_name.format(layer=layer, **values), tensor, file_dims, placed, sizes)


def _fix_fields(dims: Dims, fields: Sequence[str], sizes: Sizes) -> Iterator[tuple[dict[str, int], Dims]]:
    """Yield each choice of indices of the axes in a file's name, with the layout in which they are fixed."""
    if not fields:
        yield {}, dims
        return
    name, *others = fields
    for index in range(sizes[name]):
        for values, placed in _fix_fields(fix_axis(dims, name, index, sizes[name]), others, sizes):
            yield {name: index, **values}, placed


def _group(pairs: Iterable[tuple[str, Piece]]) -> Mapping[str, tuple[Piece, ...]]:
    grouped: dict[str, list[Piece]] = defaultdict(list)
    for name, piece in pairs:
        grouped[name].append(piece)
    return {name: tuple(pieces) for name, pieces in grouped.items()}
