"""Norms of each trained tensor, its gradient and its update, over all layers that the tensor stacks."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name

KINDS = ("param_norm", "grad_norm", "update_norm")


def norm_names(params: Params) -> list[str]:
    """Return the names of the norms of a tree of trained parameters."""
    return [f"{kind}/{name}" for kind in KINDS for name, _ in _list_leaves(params)]


def measure_norms(
    params: Params, sums: Params, update_squares: Params, scale: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """Return the norms by the names of `norm_names`, as float32 scalars.

    `params` are the parameters before the step. `scale` has the factors that make mean gradients of the `sums` of
    gradients, and applied changes of updates, whose sums of squares are given; 0: the update is skipped.
    """
    of_sum, of_update = scale
    means = [of_sum * norm for norm in _measure(sum_squares(sums))]
    # A skipped update may have no finite norm.
    changes = [jnp.where(of_update > 0, of_update * norm, 0.0) for norm in _measure(update_squares)]
    measured = (*_measure(sum_squares(params)), *means, *changes)
    return dict(zip(norm_names(params), measured, strict=True))


def sum_squares(tree: Params) -> Params:
    """Return the sum of squares of each tensor, in float32."""
    sums: Params = jax.tree.map(lambda leaf: jnp.sum(jnp.square(leaf.astype(jnp.float32))), tree)
    return sums


def _measure(squares: Params) -> list[jax.Array]:
    return [jnp.sqrt(square) for _, square in _list_leaves(squares)]


def _list_leaves(tree: Params) -> Iterable[tuple[str, jax.Array]]:
    return [(tensor_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
