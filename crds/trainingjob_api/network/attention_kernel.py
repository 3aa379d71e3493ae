"""The kernel that computes attention. Planner and trainer choose it by the same function."""

from dataclasses import dataclass
from typing import Literal

CPU = "cpu"
MIN_CHUNKED_LENGTH_CPU = 256
"""Tokens of a sequence from which the chunked kernel is faster on a CPU, as measured from 128 to 4,096 tokens."""
MIN_CHUNKED_LENGTH = 4096
"""Tokens of a sequence from which other accelerators save the memory of the scores: 64 MiB per head in float32."""

type KernelName = Literal["plain", "chunked"]


@dataclass(frozen=True)
class KernelChoice:
    """The kernel of a part of the layers, and the reason for it."""

    part: str
    name: KernelName
    reason: str
    """A clause after "because"."""


def choose_attention(accelerator: str, length: int) -> KernelChoice:
    """Return the attention kernel for sequences of a length on an accelerator of the hardware table."""
    least = MIN_CHUNKED_LENGTH_CPU if accelerator == CPU else MIN_CHUNKED_LENGTH
    if length < least:
        return KernelChoice("attention", "plain", f"sequences of {length:,} tokens are shorter than {least:,}")
    return KernelChoice("attention", "chunked", f"the memory of all scores grows with the square of {length:,} tokens")
