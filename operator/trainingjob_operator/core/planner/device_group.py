"""Bytes that a group of devices sends in a collective on a ring.

For N bytes over n devices, an all-gather and a reduce-scatter send N (n-1)/n bytes, an all-reduce twice as many. XLA
for TPUs decomposes some all-gathers into steps, to overlap each send with the matmul of the previous piece. With four
devices or more, such a ring sends up to two additional pieces. XLA for CPUs has no reduce-scatter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trainingjob_api.base import AXES, Axis
from trainingjob_api.compile_report import Network

MIN_DECOMPOSED_RING = 4
"""Number of devices of a ring from which on XLA for TPUs decomposes it."""
WHOLE_RING_SLICES = {"tpu-v5p": 4}
"""Devices of the slices whose rings XLA does not decompose, by accelerator, as compiled steps show."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a device sends in one step."""

    network: Network
    axes: tuple[Axis, ...]
    num_bytes: int
    is_exposed: bool
    """Whether the next matmul waits for it. Otherwise it overlaps with matmuls."""


@dataclass(frozen=True)
class DeviceGroup:
    """A group of devices along some axes."""

    axes: tuple[Axis, ...]
    ici: int
    dcn: int
    platform: str
    is_whole: bool = False
    """Whether XLA does not decompose rings of this slice."""

    @property
    def is_decomposed(self) -> bool:
        """Whether the compiler decomposes its all-gathers."""
        is_long = self.ici >= MIN_DECOMPOSED_RING and len(self.axes) == 1
        return self.platform == "tpu" and is_long and not self.is_whole

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return self.ici * self.dcn

    def is_split_over(self, idle: "DeviceGroup") -> bool:
        """Return whether XLA splits the width of a matrix over `idle` devices, which would repeat the same matmuls.

        This group has parts of the tokens and stores parts of the matrix. Its size must divide that of the other.
        """
        return self.size > 1 and idle.size % self.size == 0 and self.dcn == idle.dcn == 1

    def gather_over(self, idle: "DeviceGroup", num_bytes: float, gradient_bytes: float) -> Iterator[Traffic]:
        """Yield the traffic of such a matrix: all-gathers over `idle` in both passes, and its gradient.

        The shards are exchanged before each all-gather, and those of the gradient after their reduction.
        """
        yield from idle.all_gather(2 * num_bytes)
        yield from self.all_reduce(gradient_bytes / self.size)
        num_moved_bytes = 2 * num_bytes / idle.size + gradient_bytes / self.size
        axes = tuple(axis for axis in AXES if axis in (*self.axes, *idle.axes))
        yield Traffic("ici", axes, round(num_moved_bytes), is_exposed=False)

    def reduce_scatter(self, num_bytes: float, extra_pieces: int = 0) -> Iterator[Traffic]:
        """Yield the traffic of a reduce-scatter."""
        yield from (
            self.all_reduce(num_bytes) if self.platform == "cpu" else self.all_gather(num_bytes, extra=extra_pieces)
        )

    def all_gather(self, num_bytes: float, *, is_awaited: bool = False, extra: int = 0) -> Iterator[Traffic]:
        """Yield the traffic of an all-gather. A decomposed ring sends `extra` additional pieces."""
        if self.ici > 1:
            pieces = self.ici - 1 + (extra if self.is_decomposed else 0)
            yield Traffic("ici", self.axes, round(num_bytes / self.ici * pieces), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes / self.size * (self.dcn - 1)), is_awaited)

    def scatter(self, num_bytes: float) -> Iterator[Traffic]:
        """Yield the traffic of a reduce-scatter that the program itself contains."""
        yield from self.all_gather(num_bytes)

    def exchange(self, num_bytes: float) -> Iterator[Traffic]:
        """Yield the traffic of an all-to-all: each device sends a part of its bytes to every other device."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(num_bytes * (self.ici - 1) / self.size), is_exposed=False)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes * (self.dcn - 1) / self.dcn), is_exposed=False)

    def all_reduce(self, num_bytes: float, *, is_awaited: bool = False) -> Iterator[Traffic]:
        """Yield the traffic of an all-reduce: first inside slices, then of its shards between them."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(2 * num_bytes * (self.ici - 1) / self.ici), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(2 * num_bytes / self.ici * (self.dcn - 1) / self.dcn), is_awaited)
