"""The MLP of a layer.

Shapes: B batch, L length, D model width, F MLP width.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.mlp import DenseMlp, Mlp
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.params import DTYPES, add_params, project

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "geluTanh": partial(jax.nn.gelu, approximate=True),
    "quickGelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


def activate(options: Mlp, project: Callable[[str], jax.Array]) -> jax.Array:
    """Return the hidden values of an MLP from its input projections, which are computed by name."""
    activation = ACTIVATIONS[options.activation]
    if not options.gated:
        return activation(_clip_above(project("up"), options))
    gate, up = _clip_above(project("gate"), options), project("up")
    if options.clip:
        up = jnp.clip(up, -options.clip, options.clip)
    return activation(gate) * (up + options.linear_offset if options.linear_offset else up)


def _clip_above(x: jax.Array, options: Mlp) -> jax.Array:
    return jnp.minimum(x, options.clip) if options.clip else x


class MLP(nnx.Module):
    """One MLP for all tokens."""

    def __init__(self, part: DenseMlp, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.tensors, precision, rngs)
        self.options = part.options
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the MLP's output, which is added to the residual."""
        hidden_BLF = activate(self.options, lambda name: project(self, name, "BLD,DF->BLF", x_BLD))
        return project(self, "down", "BLF,FD->BLD", hidden_BLF)
