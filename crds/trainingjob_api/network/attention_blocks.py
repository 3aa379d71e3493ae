"""Blocks of attention scores that a causal mask does not hide completely.

The chunked kernel computes these blocks alone, and the planner counts them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

LARGEST_BLOCK = 256
SMALLEST_BLOCK = 64
"""Limits of a block's length. Smaller blocks cost more in the loop than they save, larger ones more memory."""
BLOCKS_IN_REACH = 8
"""Blocks among the keys that a query attends to, so that few scores of the outer blocks are hidden."""

type Pair = tuple[int, int]
"""A block of queries, numbered in its shard, and a block of keys, numbered in the sequence."""


@dataclass(frozen=True)
class CausalScope:
    """The keys that a query may attend to: those up to its own position, and of them only the near ones."""

    window: int | None = None
    """Number of the last keys that a query attends to, its own included (Beltagy et al., arXiv 2004.05150). None: all
    keys."""
    chunk: int | None = None
    """Length of the chunks into which a sequence is cut: a query attends to keys of the same chunk. None: one chunk."""

    def first_key(self, query: int) -> int:
        """Return the first key that a query attends to."""
        by_window = query - self.window + 1 if self.window else 0
        by_chunk = query // self.chunk * self.chunk if self.chunk else 0
        return max(by_window, by_chunk, 0)


@dataclass(frozen=True)
class BlockLimits:
    """The lengths of blocks that a kernel can compute."""

    smallest: int = SMALLEST_BLOCK
    largest: int = LARGEST_BLOCK
    multiple: int = 1
    """A block is a multiple of this number of tokens."""


ANY_BLOCK = BlockLimits()
"""The limits of a kernel that computes blocks of any length."""


def find_block(queries: int, scope: CausalScope, limits: BlockLimits = ANY_BLOCK) -> int:
    """Return the length of the blocks of a shard's queries: a divisor, or all queries if none is in the limits."""
    reach = min(queries, scope.window or queries, scope.chunk or queries)
    longest = min(max(reach // BLOCKS_IN_REACH, limits.smallest), limits.largest)
    sizes = range(longest // limits.multiple * limits.multiple, limits.smallest - 1, -limits.multiple)
    return next((size for size in sizes if queries % size == 0), queries)


@lru_cache(maxsize=64)
def list_pairs(length: int, shards: int, block: int, scope: CausalScope) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of blocks with a visible score for each shard of the queries, by block of queries.

    `block` divides the queries of a shard. The keys are those of the whole sequence.
    """
    blocks = length // shards // block
    return tuple(tuple(_pairs_of_shard(shard * blocks, blocks, block, scope)) for shard in range(shards))


@lru_cache(maxsize=256)
def count_pairs(length: int, shards: int, block: int, scope: CausalScope) -> int:
    """Return the pairs of blocks that each device computes: those of the shard with the most pairs."""
    blocks = length // shards // block
    return max(
        sum(query_block - _first_block(query_block, block, scope) + 1 for query_block in range(first, first + blocks))
        for first in range(0, blocks * shards, blocks)
    )


def _pairs_of_shard(first_block: int, blocks: int, block: int, scope: CausalScope) -> Iterator[Pair]:
    for number in range(blocks):
        query_block = first_block + number
        for key_block in range(_first_block(query_block, block, scope), query_block + 1):
            yield number, key_block


def _first_block(query_block: int, block: int, scope: CausalScope) -> int:
    """Return the first block of keys that the first query of a block attends to."""
    return scope.first_key(query_block * block) // block
