"""What a group of devices sends in a gather, a sum or an exchange: the bytes of rings.

Of N bytes over n devices a gather and a scattered sum send N (n-1)/n, a sum twice as much. XLA for TPUs takes some of
the gathers apart, to send a piece beside the product with the piece before it; with four devices and more such a ring
sends up to two pieces more than it must. XLA for CPUs scatters no sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trainingjob_api.base import AXES, Axis
from trainingjob_api.compile_report import Network

MIN_DECOMPOSED_RING = 4
"""Devices of a ring from which on XLA for TPUs takes it apart."""
WHOLE_RING_SLICES = {"tpu-v5p": 4}
"""Devices of the slices whose rings XLA leaves whole, by accelerator, as compiled steps show."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a device sends in one step."""

    network: Network
    axes: tuple[Axis, ...]
    num_bytes: int
    is_exposed: bool
    """Whether the next product waits for it; else it travels beside products."""


@dataclass(frozen=True)
class DeviceGroup:
    """A group of devices along some axes."""

    axes: tuple[Axis, ...]
    ici: int
    dcn: int
    platform: str
    is_whole: bool = False
    """Whether XLA leaves rings of this slice whole."""

    @property
    def is_decomposed(self) -> bool:
        """Whether the compiler takes its gathers apart."""
        is_long = self.ici >= MIN_DECOMPOSED_RING and len(self.axes) == 1
        return self.platform == "tpu" and is_long and not self.is_whole

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return self.ici * self.dcn

    def is_split_over(self, idle: "DeviceGroup") -> bool:
        """Return whether XLA splits the width of a matrix over `idle` devices, which would all compute alike.

        This group has parts of the tokens and stores parts of the matrix. Its size must divide that of the other.
        """
        return self.size > 1 and idle.size % self.size == 0 and self.dcn == idle.dcn == 1

    def gather_over(self, idle: "DeviceGroup", num_bytes: float, gradient_bytes: float) -> Iterator[Traffic]:
        """Yield what such a matrix sends: gathered over `idle` in both passes, and its gradient.

        The parts change places before each gather, and those of the gradient after their sum.
        """
        yield from idle.all_gather(2 * num_bytes)
        yield from self.all_reduce(gradient_bytes / self.size)
        num_moved_bytes = 2 * num_bytes / idle.size + gradient_bytes / self.size
        axes = tuple(axis for axis in AXES if axis in (*self.axes, *idle.axes))
        yield Traffic("ici", axes, round(num_moved_bytes), is_exposed=False)

    def reduce_scatter(self, num_bytes: float, extra_pieces: int = 0) -> Iterator[Traffic]:
        """Yield what a sum of so many bytes sends of which each device keeps a part."""
        yield from (
            self.all_reduce(num_bytes) if self.platform == "cpu" else self.all_gather(num_bytes, extra=extra_pieces)
        )

    def all_gather(self, num_bytes: float, *, is_awaited: bool = False, extra: int = 0) -> Iterator[Traffic]:
        """Yield what a gather of so many bytes sends; `extra` pieces more go around than must."""
        if self.ici > 1:
            pieces = self.ici - 1 + (extra if self.is_decomposed else 0)
            yield Traffic("ici", self.axes, round(num_bytes / self.ici * pieces), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes / self.size * (self.dcn - 1)), is_awaited)

    def scatter(self, num_bytes: float) -> Iterator[Traffic]:
        """Yield what a sum of so many bytes sends that the program itself scatters over the devices."""
        yield from self.all_gather(num_bytes)

    def exchange(self, num_bytes: float) -> Iterator[Traffic]:
        """Yield the traffic of an all-to-all: each device sends a part of its bytes to every other device."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(num_bytes * (self.ici - 1) / self.size), is_exposed=False)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes * (self.dcn - 1) / self.dcn), is_exposed=False)

    def all_reduce(self, num_bytes: float, *, is_awaited: bool = False) -> Iterator[Traffic]:
        """Yield what a sum of so many bytes sends: first inside slices, then parts of it between them."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(2 * num_bytes * (self.ici - 1) / self.ici), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(2 * num_bytes / self.ici * (self.dcn - 1) / self.dcn), is_awaited)
