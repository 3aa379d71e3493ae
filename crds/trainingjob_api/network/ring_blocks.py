"""Blocks of attention scores in a ring, whose devices pass their keys on (Liu et al., arXiv 2310.01889).

Each device holds two chunks of a sequence, see `trainingjob_api.token_order`. In each step a device computes the scores
of its queries with the keys that it has then. A step without a visible score on any device is left out: the keys
then move several places at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from trainingjob_api.network.attention_blocks import CausalScope, Pair, find_block
from trainingjob_api.token_order import order_chunks


@dataclass(frozen=True)
class Ring:
    """The devices along `context`, and the blocks of the sequence that each holds."""

    length: int
    """Tokens of a whole sequence."""
    shards: int
    """Devices of the ring."""
    block: int
    """Tokens of a block, a divisor of the tokens of a chunk."""
    scope: CausalScope

    @property
    def chunk(self) -> int:
        """Return the tokens of a chunk."""
        return self.length // (2 * self.shards)

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        """Return the first token of each chunk of a device."""
        order = order_chunks("ring", self.shards)
        return tuple(self.chunk * number for number in order[2 * rank : 2 * rank + 2])

    def ranges(self, rank: int, owner: int) -> Iterator[tuple[int, int, int]]:
        """Yield (block of queries, first block of keys, number of blocks), where a device sees keys of an owner.

        Blocks are numbered on their devices.
        """
        blocks = self.chunk // self.block
        for half, first_query in enumerate(self.chunks_of(rank)):
            for number in range(blocks):
                query = first_query + number * self.block
                for key_half, first_key in enumerate(self.chunks_of(owner)):
                    begin = max((self.scope.first_key(query) - first_key) // self.block, 0)
                    end = min((query - first_key) // self.block, blocks - 1) + 1
                    if begin < end:
                        yield half * blocks + number, key_half * blocks + begin, end - begin


@dataclass(frozen=True)
class RingStep:
    """One step of a ring."""

    distance: int
    """A device has the keys of the device that is this many positions before it."""
    pairs: tuple[tuple[Pair, ...], ...]
    """Pairs of blocks of queries and keys with a visible score, for each device."""


def find_ring(length: int, shards: int, scope: CausalScope) -> Ring:
    """Return the ring of a number of devices for sequences of a length."""
    return Ring(length, shards, find_block(length // (2 * shards), scope), scope)


@lru_cache(maxsize=64)
def list_ring_steps(ring: Ring) -> tuple[RingStep, ...]:
    """Return the steps in which any device sees a key."""
    return tuple(
        RingStep(
            distance,
            tuple(
                tuple(
                    (query, first + number)
                    for query, first, count in ring.ranges(rank, (rank - distance) % ring.shards)
                    for number in range(count)
                )
                for rank in range(ring.shards)
            ),
        )
        for distance, count in _count_by_distance(ring).items()
        if count
    )


def count_ring_pairs(ring: Ring) -> int:
    """Return the pairs of blocks that each device computes: in each step, those of the device with the most."""
    return sum(_count_by_distance(ring).values())


def count_ring_hops(ring: Ring) -> int:
    """Return how often a device passes keys on, when it goes over all of them once."""
    return sum(count > 0 for count in _count_by_distance(ring).values()) - 1


@lru_cache(maxsize=256)
def _count_by_distance(ring: Ring) -> dict[int, int]:
    """Return the pairs of the device with the most, by the distance of the keys."""
    blocks = ring.chunk // ring.block
    if ring.scope == CausalScope():  # the balanced causal mask: a strategy search must not count blocks one by one
        own = blocks * (blocks + 1) + blocks * blocks
        return {distance: 2 * blocks * blocks if distance else own for distance in range(ring.shards)}
    return {
        distance: max(
            sum(count for *_, count in ring.ranges(rank, (rank - distance) % ring.shards))
            for rank in range(ring.shards)
        )
        for distance in range(ring.shards)
    }
