"""Tensors in quantized formats, read as the numbers that they stand for, by region.

Two formats have published models that exist in no other one. MXFP4 (OCP Microscaling Formats, version 1.0) is that of
the experts of gpt-oss: 32 numbers of 4 bits share a power of 2. DeepSeek-V3 has 8-bit numbers, and a factor for each
block of 128 rows and columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainingjob_api.huggingface.layout import Region, Shape
from trainingjob_trainer.huggingface.safetensors import TensorEntry, read_region
from trainingjob_trainer.store.port import Store

BLOCKS, SCALES = "_blocks", "_scales"
"""Endings of the two tensors of one in MXFP4."""
SCALE_INVERSE = "_scale_inv"
"""Ending of the factors of one in blocks of 8-bit numbers."""
GROUP = 32
"""Numbers that share an exponent in MXFP4."""
BYTES_OF_GROUP = 16
EXPONENT_BIAS = 127
BLOCK = 128
"""Rows and columns that share a factor."""
FP4_NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The numbers of the 16 patterns of 4 bits: sign, 2 bits of exponent, 1 bit of mantissa."""


@dataclass(frozen=True)
class Mxfp4Tensor:
    """A tensor [experts, inputs, outputs], stored as [experts, outputs, groups of inputs, bytes of a group]."""

    blocks: TensorEntry
    scales: TensorEntry
    dtype: str = "F32"

    @property
    def shape(self) -> Shape:
        """Return the shape of the numbers."""
        experts, outputs, groups, _ = self.blocks.shape
        return experts, groups * GROUP, outputs

    @property
    def num_bytes(self) -> int:
        """Return the bytes in the files."""
        return self.blocks.num_bytes + self.scales.num_bytes

    def read(self, store: Store, region: Region) -> np.ndarray:
        """Return a region of the numbers in float32."""
        experts, (start, stop), outputs = region
        groups = (start // GROUP, -(-stop // GROUP))
        packed = read_region(store, self.blocks, (experts, outputs, groups, (0, BYTES_OF_GROUP)))
        exponents = read_region(store, self.scales, (experts, outputs, groups)).astype(np.int32) - EXPONENT_BIAS
        halves = np.stack([FP4_NUMBERS[packed & 0x0F], FP4_NUMBERS[packed >> 4]], axis=-1)
        numbers = np.ldexp(halves.reshape(*packed.shape[:-1], GROUP), exponents[..., None])
        first = groups[0] * GROUP
        rows: np.ndarray = numbers.reshape(*packed.shape[:2], -1)[:, :, start - first : stop - first]
        return rows.transpose(0, 2, 1)


@dataclass(frozen=True)
class BlockScaledTensor:
    """A matrix of 8-bit numbers, with a factor for each block."""

    numbers: TensorEntry
    factors: TensorEntry
    dtype: str = "F32"

    @property
    def shape(self) -> Shape:
        """Return the shape of the matrix."""
        return self.numbers.shape

    @property
    def num_bytes(self) -> int:
        """Return the bytes in the files."""
        return self.numbers.num_bytes + self.factors.num_bytes

    def read(self, store: Store, region: Region) -> np.ndarray:
        """Return a region of the scaled numbers in float32."""
        blocks = tuple((start // BLOCK, -(-stop // BLOCK)) for start, stop in region)
        factors = read_region(store, self.factors, blocks).astype(np.float32)
        for axis, ((start, stop), (first, _)) in enumerate(zip(region, blocks, strict=True)):
            inside = slice(start - first * BLOCK, stop - first * BLOCK)
            factors = np.take(np.repeat(factors, BLOCK, axis), range(inside.start, inside.stop), axis)
        return read_region(store, self.numbers, region).astype(np.float32) * factors


type StoredTensor = TensorEntry | Mxfp4Tensor | BlockScaledTensor


def join_quantized(entries: Mapping[str, TensorEntry]) -> dict[str, StoredTensor]:
    """Return the tensors of files by name, where the parts of a quantized one are one tensor."""
    joined: dict[str, StoredTensor] = dict(entries)
    for name, entry in entries.items():
        base = name.removesuffix(BLOCKS)
        scales, factors = entries.get(f"{base}{SCALES}"), entries.get(f"{name}{SCALE_INVERSE}")
        if base != name and scales and _is_mxfp4(entry, scales):
            del joined[name], joined[f"{base}{SCALES}"]
            joined[base] = Mxfp4Tensor(entry, scales)
        elif factors and _is_block_scaled(entry, factors):
            del joined[f"{name}{SCALE_INVERSE}"]
            joined[name] = BlockScaledTensor(entry, factors)
    return joined


def _is_mxfp4(blocks: TensorEntry, scales: TensorEntry) -> bool:
    is_packed = blocks.dtype == scales.dtype == "U8" and len(blocks.shape) == len(scales.shape) + 1 == 4
    return is_packed and blocks.shape == (*scales.shape, BYTES_OF_GROUP)


def _is_block_scaled(numbers: TensorEntry, factors: TensorEntry) -> bool:
    return numbers.dtype == "F8_E4M3" and factors.shape == tuple(-(-size // BLOCK) for size in numbers.shape)
