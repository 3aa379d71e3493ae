"""The matrices of a model with LoRA as those of a plain one: int8 as numbers, and adapters added, region by region."""

import numpy as np

from trainingjob_api.huggingface.layout import Region
from trainingjob_api.network.adapter import INPUT_ENDING, OUTPUT_ENDING, SCALE_ENDING
from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Storage, Tensor
from trainingjob_api.spec.lora import Lora
from trainingjob_trainer.huggingface.export_weights import Gather


def merge_adapters(gather: Gather, network: Network, lora: Lora | None) -> Gather:
    """Return what gathers regions of plain matrices, in float32 where LoRA changes them. Without LoRA: `gather`.

    All processes call it together, as `gather`.
    """
    if lora is None:
        return gather
    tensors = {tensor.name: tensor for tensor in network.tensors}

    def gather_merged(name: str, region: Region) -> np.ndarray:
        matrix, numbers = tensors[name], gather(name, region)
        if matrix.storage is Storage.INT8:
            numbers = numbers.astype(np.float32) * _gather_scale(gather, matrix, region)
        if f"{name}{INPUT_ENDING}" in tensors:
            numbers = numbers.astype(np.float32) + lora.scale * _gather_product(gather, matrix, lora.rank, region)
        return numbers

    return gather_merged


def _gather_scale(gather: Gather, matrix: Tensor, region: Region) -> np.ndarray:
    inputs = matrix.input_dims
    kept = tuple(span for dim, span in enumerate(region) if dim not in inputs)
    return np.expand_dims(gather(f"{matrix.name}{SCALE_ENDING}", kept), inputs)


def _gather_product(gather: Gather, matrix: Tensor, rank: int, region: Region) -> np.ndarray:
    """Return the product of both sides of an adapter in a region of its matrix."""
    (layers, *spans), inputs = region, len(matrix.input_dims)
    input_side = gather(f"{matrix.name}{INPUT_ENDING}", (layers, *spans[:inputs], (0, rank))).astype(np.float32)
    output_side = gather(f"{matrix.name}{OUTPUT_ENDING}", (layers, (0, rank), *spans[inputs:])).astype(np.float32)
    product = input_side.reshape(len(input_side), -1, rank) @ output_side.reshape(len(input_side), rank, -1)
    return product.reshape([stop - start for start, stop in region])
