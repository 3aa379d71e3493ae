"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Shapes: R sequences, L length, D model width.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.multi_token_prediction import PredictionModules
from trainingjob_api.network.tensor import MODULES
from trainingjob_api.spec.precision import Precision
from trainingjob_api.token_order import Exchange
from trainingjob_trainer.models.layers import HiddenStates, Layer
from trainingjob_trainer.models.norm import Norm
from trainingjob_trainer.models.params import DTYPES, add_params
from trainingjob_trainer.models.remat import rematerialize
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.parallel.token_order import shift_tokens


class PredictionModule(nnx.Module):
    """One module: it joins hidden states with the embeddings of later tokens, and runs a layer."""

    token_projection: nnx.Param[Any]
    hidden_projection: nnx.Param[Any]

    def __init__(self, modules: PredictionModules, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, modules.own_tensors, precision, rngs)
        self.token_norm, self.hidden_norm, self.norm = (Norm(modules.norm, precision, rngs) for _ in range(3))
        self.block = Layer(modules.block, precision, rngs)
        self.dtype = DTYPES[precision.compute]

    def join(self, x_RLD: jax.Array, embedded_RLD: jax.Array) -> jax.Array:
        """Return the input of the layer [R, L, D]."""
        token = jnp.einsum("RLD,DE->RLE", self.token_norm(embedded_RLD), self.token_projection[...].astype(self.dtype))
        hidden = jnp.einsum("RLD,DE->RLE", self.hidden_norm(x_RLD), self.hidden_projection[...].astype(self.dtype))
        return constrain(token + hidden, "batch", "length", None)


class Shifted(NamedTuple):
    """What belongs to the token some places later, for each token in the order of the sequence."""

    embedded: jax.Array
    """Embeddings [R, L, D], of tokens in the order of the mesh."""
    targets: jax.Array
    weights: jax.Array
    segments: jax.Array | None


def stack_modules(modules: PredictionModules, precision: Precision, rngs: nnx.Rngs) -> nnx.Module:
    """Return all modules, whose parameters are stacked along a first dimension."""
    stacked = nnx.vmap(
        lambda rngs: PredictionModule(modules, precision, rngs),
        in_axes=0,
        transform_metadata={nnx.PARTITION_NAME: MODULES},
    )
    made: nnx.Module = stacked(rngs.split(modules.options.depth))  # type: ignore[no-untyped-call]
    return made


def shift(later: Shifted, segments_RL: jax.Array | None, exchange: Exchange, shards: int) -> tuple[Shifted, jax.Array]:
    """Return what belongs to one token later, and the weights of its predictions [R, L].

    `segments_RL` are the documents of the tokens themselves. A prediction for another document has no weight.
    `exchange` and the shards of a sequence determine the order of the mesh.
    """
    targets, weights, segments = jax.tree.map(lambda array: jnp.roll(array, -1, axis=1), later[1:])
    rolled = Shifted(shift_tokens(later.embedded, exchange, shards), targets, weights, segments)
    is_inside_L = jnp.arange(rolled.weights.shape[1]) < rolled.weights.shape[1] - 1
    rolled = rolled._replace(weights=jnp.where(is_inside_L[None], rolled.weights, 0.0))
    if segments_RL is None:
        return rolled, rolled.weights
    return rolled, jnp.where(rolled.segments == segments_RL, rolled.weights, 0.0)


def run_module(structure: Any, params: Any, stream: HiddenStates, embedded_RLD: jax.Array, saved: Any) -> HiddenStates:
    """Return the hidden states after one module."""
    module = nnx.merge(structure, params)
    joined = stream._replace(x=module.join(stream.x, embedded_RLD))
    out: HiddenStates = rematerialize(module.block, saved)(joined)
    return out
