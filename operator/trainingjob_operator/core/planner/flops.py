"""FLOPs of a train step, from the spec alone. As usual for such counts, only matmuls are counted.

A matmul of one token with a matrix of P parameters takes 2 P operations in the forward pass and 4 P in the backward
pass. `remat: full` repeats the forward pass except the last matmul of a layer, which the backward pass does not need.
Attention computes the scores of the whole sequence, including those that the causal mask hides.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, E experts, C capacity.
"""

from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.sharding import count_shards
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees, pipeline_ticks
from trainingjob_operator.core.planner.parameters import count_active_parameters, list_parameter_tensors, split_size
from trainingjob_operator.core.planner.workload import Workload

FORWARD_FLOPS, BACKWARD_FLOPS = 2, 4
"""Operations per parameter and token in each pass."""


def count_step_flops(workload: Workload, layout: Layout) -> int:
    """Return the FLOPs of one device in one step of a layout, including padding and idle pipeline ticks."""
    degrees = combine_degrees(layout.ici, layout.dcn)
    others = tuple((axis, degree) for axis, degree in degrees.items() if axis != "data")  # `data` splits only the batch
    layers, head = _count_token_flops(workload, others)
    tokens = layout.rows_per_shard * (workload.length // degrees["context"]) * layout.accumulation
    ticks = pipeline_ticks(layout.microbatches, degrees["stage"])
    return tokens * (ticks * layers + layout.microbatches * head // degrees["stage"])


def count_useful_flops(workload: Workload) -> int:
    """Return the model FLOPs per token, the basis of MFU (model FLOPs utilization).

    Six for each active parameter without the embedding table, and attention over the unmasked half of the scores.
    Rematerialization does not count (Chowdhery et al., arXiv 2204.02311, appendix B; the causal half as in NVIDIA's
    Megatron-LM).
    """
    model = workload.model
    table = 0 if model.tie_embeddings else model.vocab_size * model.embed_dim  # a tied table is also the lm_head
    scores = model.num_layers * workload.length * model.num_heads * model.head_dim
    return 6 * (count_active_parameters(model) - table) + 6 * scores


@lru_cache(maxsize=256)  # the sizes of an elastic job mostly share these degrees
def _count_token_flops(workload: Workload, axes: tuple[tuple[Axis, int], ...]) -> tuple[int, int]:
    """Return the FLOPs of a device per token in the layers of one stage, and in the output projection."""
    degrees, model = dict(axes), workload.model
    ways = count_shards(degrees)
    has_full_remat = workload.remat == "full"
    passes = FORWARD_FLOPS + BACKWARD_FLOPS + (FORWARD_FLOPS if has_full_remat else 0)
    weights = skipped = 0
    for leaf in list_parameter_tensors(model):
        if "layers" not in leaf.axes or leaf.name.endswith(".scale"):
            continue
        size = leaf.gathered_size(ways) // model.num_layers
        if model.experts and "experts" in leaf.axes:  # experts also compute the empty capacity slots of the mesh axis
            capacity_slots = model.experts.capacity(workload.length) * degrees["expert"]
            size = size * capacity_slots // model.experts.group_size(workload.length)
        weights += size
        if leaf.name.endswith(".down") and not model.experts:
            skipped += size
    heads = split_size(model.num_heads, "heads", ways)
    scores = 2 * heads * model.head_dim * workload.length
    layer = (
        passes * (weights + scores)
        - FORWARD_FLOPS * skipped * has_full_remat
        + _count_routing_flops(workload, again=has_full_remat)
    )
    head = (FORWARD_FLOPS + BACKWARD_FLOPS) * model.embed_dim * split_size(model.vocab_size, "vocab", ways)
    return model.num_layers // degrees["stage"] * layer, head


def _count_routing_flops(workload: Workload, *, again: bool) -> int:
    """Return the FLOPs per token of dispatching to the experts and combining, as matmuls with one-hot matrices."""
    experts = workload.model.experts
    if experts is None:
        return 0
    places = experts.count * experts.capacity(workload.length)
    # Dispatch and combine, each forward and backward. Rematerialization repeats only the dispatch, because the backward
    # pass does not need the combined result.
    return 2 * places * workload.model.embed_dim * (4 + again)
