"""From a network to that of a job with LoRA."""

from dataclasses import replace

from trainingjob_api.network.adapter import INPUT_ENDING, OUTPUT_ENDING, Adaptation, can_adapt
from trainingjob_api.network.block import Block
from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.spec.lora import Lora

ADAPTER_PATTERNS = (f"*{INPUT_ENDING}", f"*{OUTPUT_ENDING}")
"""Patterns of the tensors that LoRA trains."""


def list_targets(network: Network) -> tuple[Tensor, ...]:
    """Return the tensors of a network that can have an adapter."""
    return tuple(tensor for group in network.groups for tensor in group.tensors if can_adapt(tensor))


def adapt(network: Network, lora: Lora) -> Network:
    """Return a network with adapters at the matrices that a pattern matches."""

    def adapt_block(group: Group, position: int, block: Block) -> Block:
        prefix = group.prefix(position)
        names = (tensor.name for tensor in block.tensors if can_adapt(tensor))
        targets = frozenset(name for name in names if matches_any(f"{prefix}{name}", lora.targets))
        is_quantized = lora.base_quantization == "int8"
        return replace(block, adaptation=Adaptation(lora.rank, lora.scale, lora.dropout, targets, is_quantized))

    groups = (
        replace(
            group,
            pattern=tuple(adapt_block(group, position, block) for position, block in enumerate(group.pattern)),
        )
        for group in network.groups
    )
    return replace(network, groups=tuple(groups))
