"""Blocks of attention scores, against the mask of each pair of tokens."""

import numpy as np
import pytest

from trainingjob_api.network.attention_blocks import CausalScope, count_pairs, find_block, list_pairs
from trainingjob_api.network.attention_kernel import LANES, MIN_CHUNKED_LENGTH, SPLASH_BLOCKS

SCOPES = {
    "causal": CausalScope(),
    "window": CausalScope(window=5),
    "window of one key": CausalScope(window=1),
    "chunks": CausalScope(chunk=6),
    "window in chunks": CausalScope(window=5, chunk=8),
}


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_pair_of_blocks_is_listed_if_it_has_a_visible_score(scope: CausalScope, shards: int) -> None:
    length, block = 32, 4
    visible = np.zeros((length, length), bool)
    for query in range(length):
        for key in range(query + 1):
            in_window = scope.window is None or query - key < scope.window
            in_chunk = scope.chunk is None or query // scope.chunk == key // scope.chunk
            visible[query, key] = in_window and in_chunk
    per_shard = length // shards
    want = tuple(
        tuple(
            (query, key)
            for query in range(per_shard // block)
            for key in range(length // block)
            if visible[shard * per_shard :][query * block :][:block, key * block :][:, :block].any()
        )
        for shard in range(shards)
    )

    assert list_pairs(length, shards, block, scope) == want
    assert count_pairs(length, shards, block, scope) == max(map(len, want))


@pytest.mark.parametrize(
    ("queries", "scope", "block"),
    [
        (8192, CausalScope(), 256),
        (1024, CausalScope(), 128),
        (1000, CausalScope(), 125),
        (256, CausalScope(), 64),
        (8192, CausalScope(window=1024), 128),
        (8192, CausalScope(window=128), 64),
        (8192, CausalScope(chunk=1536), 128),
        (131, CausalScope(), 131),  # no divisor between 64 and 130
        (16, CausalScope(), 16),
    ],
)
def test_a_block_divides_the_queries(queries: int, scope: CausalScope, block: int) -> None:
    assert find_block(queries, scope) == block


@pytest.mark.parametrize("scope", [CausalScope(), CausalScope(window=2000), CausalScope(chunk=1700)])
def test_splash_attention_has_blocks_of_whole_rows_of_registers(scope: CausalScope) -> None:
    lengths = range(MIN_CHUNKED_LENGTH, 2 * MIN_CHUNKED_LENGTH + 1, LANES)
    blocks = {length: find_block(length, scope, SPLASH_BLOCKS) for length in lengths}

    assert {length: block for length, block in blocks.items() if block % LANES or length % block or block > 512} == {}
    assert find_block(8192, CausalScope(), SPLASH_BLOCKS) == 512
    assert find_block(4352, CausalScope(), SPLASH_BLOCKS) == 256
