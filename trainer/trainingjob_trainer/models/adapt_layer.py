"""The parameters of LoRA in a layer: adapters beside the matrices, and int8 instead of the matrices themselves."""

from functools import reduce
from typing import Any

import jax
from flax import nnx

from trainingjob_api.network.adapter import SCALE_ENDING, is_adapter
from trainingjob_api.network.block import Block
from trainingjob_api.network.tensor import Storage, Tensor
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.lora import quantize
from trainingjob_trainer.models.params import make_param, store


def adapt_layer(layer: nnx.Module, block: Block, precision: Precision, rngs: nnx.Rngs) -> None:
    """Add the adapters of a block to the modules of their matrices, and store the matrices as the block states."""
    if block.adaptation is None:
        return
    tensors = {tensor.name: tensor for tensor in block.tensors}
    for tensor in block.tensors:
        module, name = _find_place(layer, tensor)
        if is_adapter(tensor):
            module.adaptation = block.adaptation
            setattr(module, name, make_param(tensor, precision, rngs))
        elif tensor.storage is Storage.INT8:
            scale = tensors[f"{tensor.name}{SCALE_ENDING}"]
            values: tuple[jax.Array, jax.Array] = quantize(getattr(module, name)[...], tensor.input_dims)
            for target, value in zip((tensor, scale), values, strict=True):
                setattr(module, target.local_name, store(value, target))


def _find_place(layer: nnx.Module, tensor: Tensor) -> tuple[Any, str]:
    """Return the module of a tensor of a layer, and the name of the tensor in it."""
    *path, name = tensor.name.split(".")
    return reduce(getattr, path, layer), name
