"""From a network to that of a job with quantized matmuls."""

from dataclasses import replace

from trainingjob_api.network.activations import PRODUCTS, SavedActivations
from trainingjob_api.network.adapter import can_quantize
from trainingjob_api.network.block import Block
from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.multi_token_prediction import PREDICTION_PREFIX
from trainingjob_api.network.network import Network
from trainingjob_api.network.part import FORWARD_FLOPS, Shard
from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls, has_parameter_gradients
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.network.tensor import DecayClass, Role, Tensor
from trainingjob_api.spec.precision import Quantization


def list_quantizable(network: Network) -> tuple[Tensor, ...]:
    """Return the tensors of a network whose matmuls can be quantized: the matrices of all layers."""
    layers = [tensor for group in network.groups for tensor in group.tensors]
    predicting = [tensor for tensor in network.tensors if tensor.name.startswith(PREDICTION_PREFIX)]
    return tuple(tensor for tensor in (*layers, *predicting) if can_quantize(tensor))


def quantize(network: Network, quantization: Quantization) -> Network:
    """Return a network whose layers have quantized matmuls, except with the matrices that a pattern excludes."""

    def quantize_block(prefix: str, block: Block) -> Block:
        matrices = (tensor.name for tensor in block.tensors if can_quantize(tensor))
        names = frozenset(name for name in matrices if not matches_any(f"{prefix}{name}", quantization.exclude))
        return replace(block, quantized=QuantizedMatmuls(quantization.type, names) if names else None)

    groups = (
        replace(
            group,
            pattern=tuple(
                quantize_block(group.prefix(position), block) for position, block in enumerate(group.pattern)
            ),
        )
        for group in network.groups
    )
    prediction = network.prediction
    if prediction:
        prediction = replace(prediction, block=quantize_block(PREDICTION_PREFIX, prediction.block))
    return replace(network, groups=tuple(groups), prediction=prediction)


def count_quantized_flops(block: Block, shard: Shard, saved: SavedActivations | None, *, forward_runs: int = 1) -> int:
    """Return the FLOPs of quantized matmuls of one device per token in one layer; None: nothing is recomputed.

    `forward_runs`: how often the layer runs forward, without recomputation.
    """
    if block.quantized is None:
        return 0
    flops = 0
    for tensor in block.tensors:
        if tensor.name in block.quantized.names:
            passes = forward_runs
            if not block.is_forward_only:
                passes += 1  # the gradient of the input
                passes += tensor.is_trainable and has_parameter_gradients(block.quantized.type)
                passes += saved is not None and _is_repeated(block, tensor, saved)
            flops += passes * FORWARD_FLOPS * block.part_of(tensor).product_size(tensor, shard)
    return flops


def _is_repeated(block: Block, tensor: Tensor, saved: SavedActivations) -> bool:
    """Return whether the backward pass recomputes the matmul of a matrix."""
    if isinstance(block.mlp, RoutedMlp):
        has_name = tensor.decay is not DecayClass.EXPERT or block.mlp.experts.dispatch == "capacity"
        return not has_name or PRODUCTS[tensor.local_name] not in saved.names
    is_needed = tensor.role is not Role.MLP_OUTPUT or block.mlp_output_norm is not None
    return is_needed and PRODUCTS[tensor.local_name] not in saved.names
