"""Order of collectives: the collectives for one value wait for those for another.

XLA keeps the collectives of a CPU program in order. Devices rely on it, because they wait for each other in each
collective. A serialized program loses the order between collectives inside a loop and those outside of it when it is
loaded (`WhileThunkFromProto` in XLA's `thunk_proto_serdes.cc`). Data dependencies must therefore enforce the order.
Without them, devices waited for each other forever, or ended because two of them met in different sums.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh


def order_collectives(tree: Any, *before: Any, mesh: Mesh) -> Any:
    """Return a tree of arrays unchanged, on CPUs only after the arrays of the other trees exist."""
    if mesh.devices.flat[0].platform != "cpu":
        return tree
    # A count is never negative, but the compiler does not know that.
    not_numbers = sum(jnp.sum(jnp.isnan(leaf)) for leaf in jax.tree.leaves(before))
    return jax.tree.map(lambda leaf: jnp.where(not_numbers >= 0, leaf, jnp.zeros_like(leaf)), tree)
