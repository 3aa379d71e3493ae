"""Blocks of attention scores in a ring, against the mask of each pair of tokens."""

import numpy as np
import pytest

from tests.api.test_attention_blocks import SCOPES
from trainingjob_api.network.attention_blocks import CausalScope
from trainingjob_api.network.ring_blocks import Ring, count_ring_hops, count_ring_pairs, find_ring, list_ring_steps
from trainingjob_api.token_order import order_chunks

LENGTH, BLOCK = 32, 2


@pytest.mark.parametrize(
    ("exchange", "shards", "order"),
    [("gather", 4, (0,)), ("ring", 1, (0,)), ("ring", 2, (0, 3, 1, 2)), ("ring", 3, (0, 5, 1, 4, 2, 3))],
)
def test_a_device_of_a_ring_holds_an_early_and_a_late_chunk(exchange: str, shards: int, order: tuple[int, ...]) -> None:
    assert order_chunks("ring" if exchange == "ring" else "gather", shards) == order


def see(scope: CausalScope) -> np.ndarray:
    """Return whether each query of a sequence sees each key."""
    query, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None, :]
    in_window = scope.window is None or query - key < scope.window
    in_chunk = scope.chunk is None or query // scope.chunk == key // scope.chunk
    return (key <= query) & in_window & in_chunk


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_the_steps_of_a_ring_have_each_visible_score_once(scope: CausalScope, shards: int) -> None:
    ring, visible = Ring(LENGTH, shards, BLOCK, scope), see(scope)
    order = [chunk * ring.chunk + token for chunk in order_chunks("ring", shards) for token in range(ring.chunk)]
    held = np.array(order).reshape(shards, -1, BLOCK)
    seen = np.zeros_like(visible)

    for step in list_ring_steps(ring):
        for rank, pairs in enumerate(step.pairs):
            for query, key in pairs:
                place = np.ix_(held[rank, query], held[(rank - step.distance) % shards, key])
                assert visible[place].any()
                assert not seen[place].any()
                seen[place] = True

    assert not (visible & ~seen).any()
    most = [max(map(len, step.pairs)) for step in list_ring_steps(ring)]
    assert (count_ring_pairs(ring), count_ring_hops(ring)) == (sum(most), len(most) - 1)


def test_all_devices_of_a_causal_ring_have_equally_many_pairs() -> None:
    for step in list_ring_steps(find_ring(4096, 4, CausalScope())):
        assert len(set(map(len, step.pairs))) == 1


def test_a_window_skips_the_steps_in_which_no_device_sees_a_key() -> None:
    near = list_ring_steps(Ring(64, 8, 4, CausalScope(window=4)))

    assert [step.distance for step in near] == [0, 1, 7]
    assert [step.distance for step in list_ring_steps(Ring(64, 8, 4, CausalScope(window=1)))] == [0]
