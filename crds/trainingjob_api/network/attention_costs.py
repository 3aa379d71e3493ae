"""Costs of attention scores by kernel: FLOPs, and the bytes beside queries, keys, values and output."""

from dataclasses import dataclass

from trainingjob_api.network.attention_blocks import CausalScope, count_pairs, find_block
from trainingjob_api.network.attention_kernel import KernelName
from trainingjob_api.network.part import FLOAT32, Shard


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
    """Temporary values of the backward pass, also of a layer that is computed again."""


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
    shards = shard.degrees.get("context", 1)
    queries = shard.length // shards
    block = find_block(queries, shapes.scope)
    block_scores = shapes.heads * block * block
    scores = block_scores * count_pairs(shard.length, shards, block, shapes.scope) // queries
    # The loops run over copies of queries, output, its gradient, keys and values. They sum three gradients in float32.
    keys = shapes.kv_heads * widths * shards
    copies = shapes.heads * (widths + shapes.value_width) + keys
    gradients = shapes.heads * shapes.key_width + keys
    return ScoreCosts(
        forward_flops=2 * scores * widths,
        backward_flops=2 * scores * (2 * widths + shapes.key_width),  # it computes the scores again
        saved_bytes=shapes.heads * FLOAT32,  # the log-sum-exp
        backward_bytes=0,
        workspace_bytes=shard.compute_bytes * copies + FLOAT32 * (gradients + BLOCK_VALUES * block_scores // queries),
    )
