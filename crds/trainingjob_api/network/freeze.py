"""Frozen tensors: those that no pattern of `optimizer.trainable` matches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from trainingjob_api.globs import compile_wildcards
from trainingjob_api.network.block import Block
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.tensor import Tensor


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches the name of a tensor. `*` matches any characters, also dots."""
    return any(compile_wildcards(pattern).fullmatch(name) for pattern in patterns)


def freeze(network: Network, trainable: Sequence[str]) -> Network:
    """Return a network with all tensors frozen that no pattern matches."""
    if "*" in trainable:
        return network
    outside = frozenset(tensor.name for tensor in _outside_layers(network) if not matches_any(tensor.name, trainable))
    has_backward = any(tensor.name not in outside for tensor in network.embedding.tensors)
    groups = []
    for group in network.groups:
        # The layers of a group run in one loop: a gradient passes all of them or none.
        has_backward |= any(matches_any(tensor.name, trainable) for tensor in group.tensors)
        groups.append(_freeze_group(group, trainable, has_backward=has_backward))
    return replace(network, groups=tuple(groups), frozen=outside)


def _outside_layers(network: Network) -> Iterator[Tensor]:
    """Yield the tensors that belong to no layer."""
    yield from (tensor for tensor in network.tensors if not tensor.is_stacked)


def _freeze_group(group: Group, trainable: Sequence[str], *, has_backward: bool) -> Group:
    def freeze_block(position: int, block: Block) -> Block:
        prefix = group.prefix(position)
        frozen = (tensor.name for tensor in block.tensors if not matches_any(f"{prefix}{tensor.name}", trainable))
        return replace(block, frozen=frozenset(frozen), is_forward_only=not has_backward)

    return replace(group, pattern=tuple(freeze_block(position, block) for position, block in enumerate(group.pattern)))
