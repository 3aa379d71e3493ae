"""FLOPs of a train step, from the spec alone. As usual for such counts, only matmuls are counted.

A matmul of one token with a matrix of P parameters takes 2 P operations in the forward pass and 4 P in the backward
pass, or 2 P if the matrix is frozen. Rematerialization repeats the matmuls of a layer whose products are not saved,
except the last one, which the backward pass does not need.
Attention computes the scores of the chosen kernel: all of them, or the blocks that the mask does not hide completely.

The parts of a layer state their FLOPs, see `trainingjob_api.network`.
"""

from collections.abc import Mapping
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.network.block import Block
from trainingjob_api.network.network import Network
from trainingjob_api.network.part import BACKWARD_FLOPS, FORWARD_FLOPS
from trainingjob_api.network.quantize import count_quantized_flops
from trainingjob_api.optim import is_orthogonalized
from trainingjob_api.sharding import count_shards, merge_rules
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.workload import Workload, count_chunks_of_loss


def count_step_flops(workload: Workload, layout: Layout) -> int:
    """Return the FLOPs of one device in one step of a layout, including padding and idle pipeline ticks."""
    return sum(_count_model_flops(model, layout) for model in workload.models)


def _count_model_flops(workload: Workload, layout: Layout) -> int:
    degrees = combine_degrees(layout.ici, layout.dcn)
    layers, modules, head = _count_token_flops(workload, _without_data(degrees))  # of all layers of a stage
    if workload.repeats_chunks and count_chunks_of_loss(workload, degrees, layout.rows_per_shard) > 1:
        head += head // workload.network.num_head_matmuls
    schedule = workload.schedule(layout)
    passes = schedule.ticks * layers // schedule.repeats + schedule.lm_head_runs * (modules + head)
    return _count_tokens(workload, layout, degrees) * passes + _count_update_flops(workload, degrees)


def _count_update_flops(workload: Workload, degrees: Mapping[Axis, int]) -> int:
    """Return the FLOPs of one device that orthogonalize the updates of a step, of whole matrices or of its parts."""
    if not workload.newton_schulz_steps:
        return 0
    ways, flops = count_shards(degrees, merge_rules(workload.rules.overrides())), 0
    for tensor in workload.network.tensors:
        if tensor.is_trainable and is_orthogonalized(tensor):
            side, other = sorted(tensor.matrix_shape)
            # With X of `side` rows: X times its transpose A, A times A, and a sum of both times X.
            size = workload.count_whole_matrices(tensor, ways) * side * other or tensor.shard_size(ways)
            flops += FORWARD_FLOPS * (2 * size * side + size * side**2 // other)
    return workload.newton_schulz_steps * flops


def count_quantized_step_flops(workload: Workload, layout: Layout) -> int:
    """Return those FLOPs of `count_step_flops` whose operands are quantized."""
    return sum(_count_quantized_model_flops(model, layout) for model in workload.models)


def _count_quantized_model_flops(workload: Workload, layout: Layout) -> int:
    degrees = combine_degrees(layout.ici, layout.dcn)
    layers, modules = _count_quantized_token_flops(workload, _without_data(degrees))
    schedule = workload.schedule(layout)
    passes = schedule.ticks * layers // schedule.repeats + schedule.lm_head_runs * modules
    return _count_tokens(workload, layout, degrees) * passes


def _count_tokens(workload: Workload, layout: Layout, degrees: Mapping[Axis, int]) -> int:
    """Return the tokens of a microbatch on one device, times the accumulation steps."""
    return layout.rows_per_shard * (workload.length // degrees["context"]) * layout.accumulation


def _without_data(degrees: Mapping[Axis, int]) -> tuple[tuple[Axis, int], ...]:
    """Return the degrees that the FLOPs of a token depend on: `data` splits only the batch."""
    return tuple((axis, degree) for axis, degree in degrees.items() if axis != "data")


def count_visible_flops(workload: Workload, layout: Layout) -> int:
    """Return the FLOPs of one device in one step that the text of a compiled program shows.

    cuDNN and Pallas kernels are single operations in it, whose matmuls it does not show.
    """
    return sum(_count_visible_model_flops(model, layout) for model in workload.models)


def _count_visible_model_flops(workload: Workload, layout: Layout) -> int:
    degrees = combine_degrees(layout.ici, layout.dcn)
    shard, network, stages = workload.shard(degrees), workload.network, degrees["stage"]

    def count_hidden(blocks: Mapping[Block, int], stages: int) -> int:
        hidden = 0
        for block, count in blocks.items():
            if block.attention.choose_kernel(shard).name in ("cudnn", "splash"):
                scores = block.attention.score_costs(shard)
                passes = workload.forward_runs(block, stages) + (workload.memory.remat == "full")
                hidden += count // stages * (passes * scores.forward_flops + scores.backward_flops)
        return hidden

    tokens, schedule = _count_tokens(workload, layout, degrees), workload.schedule(layout)
    hidden = schedule.ticks * count_hidden(network.layer_blocks, stages) // schedule.repeats
    hidden += schedule.lm_head_runs * count_hidden(network.module_blocks, 1)
    return _count_model_flops(workload, layout) - tokens * hidden


def count_useful_flops(workload: Workload) -> int:
    """Return the model FLOPs per token, the basis of MFU (model FLOPs utilization).

    Six for each active parameter without the embedding tables, and attention over the unmasked half of the scores. Four
    for a frozen parameter, or two if no gradient passes its layer. A reference model counts two for each parameter.
    Rematerialization does not count (Chowdhery et al., arXiv 2204.02311, appendix B; the causal half as in NVIDIA's
    Megatron-LM).
    """
    return sum(_count_useful_model_flops(model) for model in workload.models)


def _count_useful_model_flops(workload: Workload) -> int:
    network, flops = workload.network, 0
    for block, count in network.blocks.items():
        sizes = (block.part_of(tensor).active_size(tensor) * tensor.gradients.value for tensor in block.tensors)
        scores = sum(part.causal_flops(workload.length) for part in block.parts.values())
        flops += count * (FORWARD_FLOPS * sum(sizes) + (scores // 3 if block.is_forward_only else scores))
    head = network.num_head_matmuls * network.head_matrix.size
    norm = sum(tensor.size * tensor.gradients.value for tensor in network.tensors if tensor.name.startswith("norm."))
    return flops + FORWARD_FLOPS * (head + norm) + _count_projection_flops(network)


@lru_cache(maxsize=256)  # the sizes of an elastic job mostly share these degrees
def _count_token_flops(workload: Workload, axes: tuple[tuple[Axis, int], ...]) -> tuple[int, int, int]:
    """Return the FLOPs of a device per token in the layers of one stage, in modules, and in the output projection.

    The modules are those of multi-token prediction, which stages share in the way of the output projection.
    """
    degrees, network = dict(axes), workload.network
    shard = workload.shard(degrees)

    def count_layers(blocks: Mapping[Block, int], stages: int) -> int:
        layers = 0
        for block, count in blocks.items():
            flops = block.flops(shard, workload.memory.saved)
            forward = workload.forward_runs(block, stages) * flops.forward
            layers += count // stages * (forward + flops.backward + flops.recomputed)
        return layers

    modules = count_layers(network.module_blocks, 1) + _count_projection_flops(network)
    head = network.num_head_matmuls * network.width * workload.split_vocabulary(degrees)
    return count_layers(network.layer_blocks, degrees["stage"]), modules, FORWARD_FLOPS * head


@lru_cache(maxsize=256)
def _count_quantized_token_flops(workload: Workload, axes: tuple[tuple[Axis, int], ...]) -> tuple[int, int]:
    """Return the FLOPs of a device per token in the quantized matmuls of one stage, and in those of modules."""
    degrees, network = dict(axes), workload.network
    shard = workload.shard(degrees)

    def count_layers(blocks: Mapping[Block, int], stages: int) -> int:
        return sum(
            count
            // stages
            * count_quantized_flops(
                block, shard, workload.memory.saved, forward_runs=workload.forward_runs(block, stages)
            )
            for block, count in blocks.items()
        )

    return count_layers(network.layer_blocks, degrees["stage"]), count_layers(network.module_blocks, 1)


def _count_projection_flops(network: Network) -> int:
    """Return the FLOPs per token of the projections of multi-token prediction, which no mesh axis splits."""
    projected = network.prediction.num_projected if network.prediction else 0
    return (FORWARD_FLOPS + BACKWARD_FLOPS) * projected
