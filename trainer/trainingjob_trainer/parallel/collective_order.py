"""Order of collectives in CPU programs: the collectives for one value wait for those for another.

XLA keeps the collectives of a CPU program in order. Devices rely on it, because they wait for each other in each
collective. A serialized program loses the order between collectives inside a loop and those outside of it when it is
loaded (`WhileThunkFromProto` in XLA's `thunk_proto_serdes.cc`). Data dependencies must therefore enforce the order.
Without them, devices waited for each other forever, or ended because two of them met in different sums.

On other platforms, and on one device, every function here returns its argument.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh


def order_collectives(tree: Any, *before: Any, mesh: Mesh) -> Any:
    """Return a tree of arrays unchanged, where needed only after the arrays of the other trees exist."""
    return _after(tree, *before) if _needs_order(mesh) else tree


def order_first_part[**P, T](function: Callable[P, T], mesh: Mesh) -> Callable[P, T]:
    """Return a function whose backward pass starts after the gradients of its outputs exist.

    It is for the first part of a model, whose backward pass is the last and otherwise needs only its arguments.
    """
    if not _needs_order(mesh):
        return function

    def forward(*arguments: Any) -> tuple[Any, Any]:
        return jax.vjp(function, *arguments)

    def backward(vjp: Any, gradients: Any) -> Any:
        return _after(vjp, gradients)(gradients)

    ordered: Any = jax.custom_vjp(function)
    ordered.defvjp(forward, backward)
    return ordered  # type: ignore[no-any-return]


def order_earlier_part[**P, T](function: Callable[P, T], mesh: Mesh) -> Callable[P, T]:
    """Return a function for the earlier of two parts inside the last one.

    Its outputs exist after all that its backward pass needs, which starts after the gradients of the outputs exist.
    """
    if not _needs_order(mesh):
        return function

    def forward(*arguments: Any) -> tuple[Any, Any]:
        outputs, vjp = jax.vjp(function, *arguments)
        return _after(outputs, vjp), vjp

    def backward(vjp: Any, gradients: Any) -> Any:
        return _after(vjp, gradients)(gradients)

    ordered: Any = jax.custom_vjp(function)
    ordered.defvjp(forward, backward)
    return ordered  # type: ignore[no-any-return]


def order_later_part[**P, T](function: Callable[P, T], mesh: Mesh) -> Callable[P, T]:
    """Return a function for the later of two parts inside the last one. Its backward pass starts after its outputs."""
    if not _needs_order(mesh):
        return function

    def forward(*arguments: Any) -> tuple[Any, Any]:
        outputs, vjp = jax.vjp(function, *arguments)
        return outputs, (outputs, vjp)

    def backward(saved: tuple[Any, Any], gradients: Any) -> Any:
        outputs, vjp = saved
        return _after(vjp, outputs)(gradients)

    ordered: Any = jax.custom_vjp(function)
    ordered.defvjp(forward, backward)
    return ordered  # type: ignore[no-any-return]


def order_last_part[T](function: Callable[[Any, Any, Any], T], mesh: Mesh) -> Callable[[Any, Any, Any], T]:
    """Return a function of (params, inputs, constants) that runs completely between the passes of the part before it.

    It starts after the inputs exist. The gradients of the inputs exist after the outputs and all other gradients.
    """
    if not _needs_order(mesh):
        return function

    def run(params: Any, inputs: Any, constants: Any) -> Any:
        params, constants = _after((params, constants), inputs)
        return function(params, inputs, constants)

    def forward(params: Any, inputs: Any, constants: Any) -> tuple[Any, Any]:
        outputs, vjp = jax.vjp(run, params, inputs, constants)
        return outputs, (outputs, vjp)

    def backward(saved: tuple[Any, Any], gradients: Any) -> Any:
        outputs, vjp = saved
        params, inputs, constants = vjp(gradients)
        return params, _after(inputs, outputs, params), constants

    ordered: Any = jax.custom_vjp(run)
    ordered.defvjp(forward, backward)
    return ordered  # type: ignore[no-any-return]


def _needs_order(mesh: Mesh) -> bool:
    return mesh.size > 1 and mesh.devices.flat[0].platform == "cpu"


def _after(tree: Any, *before: Any) -> Any:
    """Return a tree unchanged, as values that XLA can compute only from the arrays of the other trees."""
    # A count is never negative, but the compiler does not know that.
    not_numbers = sum(jnp.sum(jnp.isnan(leaf)) for leaf in jax.tree.leaves(before) if leaf.dtype != jax.dtypes.float0)
    return jax.tree.map(lambda leaf: jnp.where(not_numbers >= 0, leaf, jnp.zeros_like(leaf)), tree)
