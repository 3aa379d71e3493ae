"""Costs of attention scores by kernel: FLOPs, and the bytes beside queries, keys, values and output."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_api.network.attention_blocks import ANY_BLOCK, BlockLimits, CausalScope, count_pairs, find_block
from trainingjob_api.network.attention_kernel import LANES, SPLASH_BLOCKS, KernelName
from trainingjob_api.network.part import FLOAT32, Shard
from trainingjob_api.network.ring_blocks import count_ring_pairs, find_ring


@dataclass(frozen=True)
class ScoreShapes:
    """The shapes of the scores on one device."""

    heads: int
    """Query heads."""
    kv_heads: int
    key_width: int
    value_width: int
    scope: CausalScope


@dataclass(frozen=True)
class ScoreCosts:
    """Costs per token of the queries on one device."""

    forward_flops: int
    backward_flops: int
    saved_bytes: int
    backward_bytes: int
    """Gradients of what the forward pass saved."""
    workspace_bytes: int = 0
    """Temporary values of the backward pass, also of a recomputed layer."""


_BLOCK_LIMITS: Mapping[KernelName, BlockLimits] = {
    "chunked": ANY_BLOCK,
    "cudnn": BlockLimits(128, 128),
    "splash": SPLASH_BLOCKS,
}
BLOCK_VALUES = 4
"""Values in float32 of each score of a block: score, weight, and the gradients of both."""


def count_score_costs(kernel: KernelName, shapes: ScoreShapes, shard: Shard) -> ScoreCosts:
    """Return the costs of the scores with a kernel."""
    widths = shapes.key_width + shapes.value_width
    if kernel == "plain":  # it computes and saves all scores, also those that the mask hides
        scores = shapes.heads * shard.length
        return ScoreCosts(
            2 * scores * widths, 4 * scores * widths, scores * (FLOAT32 + shard.compute_bytes), scores * FLOAT32
        )
    if kernel == "ring":
        return _count_ring_costs(shapes, shard)
    shards = shard.degrees.get("context", 1)
    queries = shard.length // shards
    block = find_block(queries, shapes.scope, _BLOCK_LIMITS[kernel])
    scores = shapes.heads * block * block * count_pairs(shard.length, shards, block, shapes.scope) // queries
    # A TPU pads the rows of arrays that a Pallas kernel reads.
    row = LANES if kernel == "splash" else 1
    key_width, value_width = (-(-width // row) * row for width in (shapes.key_width, shapes.value_width))
    padding = key_width + value_width - widths
    # The kernels read copies of queries, output, its gradient, keys and values, and write three gradients.
    keys = shapes.kv_heads * (key_width + value_width) * shards
    copies = shapes.heads * (key_width + 2 * value_width) + keys
    gradients = shapes.heads * key_width + keys
    workspace = shard.compute_bytes * (copies + gradients)
    if kernel == "chunked":  # its loops sum the gradients in float32
        in_blocks = BLOCK_VALUES * shapes.heads * block * block // queries
        workspace = shard.compute_bytes * copies + FLOAT32 * (gradients + in_blocks)
    # The backward pass computes scores again: splash attention for the gradient of queries and for that of keys.
    recomputed = shapes.key_width + (widths if kernel == "splash" else 0)
    return ScoreCosts(
        forward_flops=2 * scores * widths,
        backward_flops=2 * scores * (2 * widths + recomputed),
        # The log-sum-exp, and the padding of queries, keys, values and output.
        saved_bytes=shapes.heads * FLOAT32 + shard.compute_bytes * padding * (shapes.heads + shapes.kv_heads * shards),
        backward_bytes=0,
        workspace_bytes=workspace,
    )


def _count_ring_costs(shapes: ScoreShapes, shard: Shard) -> ScoreCosts:
    """Return the costs of the scores in a ring, whose devices hold their own keys and those that pass."""
    ring = find_ring(shard.length, shard.degrees["context"], shapes.scope)
    widths = shapes.key_width + shapes.value_width
    queries, block = shard.length // ring.shards, ring.block
    scores = shapes.heads * block * block * count_ring_pairs(ring) // queries
    # Copies of queries, output and its gradient, keys and values that pass, sums of gradients, and two that pass.
    keys = shapes.kv_heads * widths
    copies = shapes.heads * (shapes.key_width + 2 * shapes.value_width) + 2 * keys
    sums = shapes.heads * shapes.key_width + 2 * keys + BLOCK_VALUES * shapes.heads * block * block // queries
    return ScoreCosts(
        forward_flops=2 * scores * widths,
        backward_flops=2 * scores * (2 * widths + shapes.key_width),
        saved_bytes=shapes.heads * FLOAT32,
        backward_bytes=0,
        workspace_bytes=shard.compute_bytes * copies + FLOAT32 * sums,
    )
