"""Mapping of logical axes to mesh axes: the model names its dimensions, and the API's table shards them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from trainingjob_api.sharding import RULES, Table, count_shards, find_zero1_dim, shards_of_dim

type Axes = tuple[str | None, ...]
"""The logical axis of each dim of an array. None: the dim is not sharded."""


def partition_spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, rules: Table = RULES
) -> PartitionSpec:
    """Return how a tensor with these logical axes is sharded over a mesh.

    A dimension whose size the mesh axes do not divide is replicated. Mesh axes that are manual in the surrounding
    `shard_map` are already removed from the shape.
    """
    return PartitionSpec(*_split_dims(axes, shape, mesh, rules))


def constrain(x: jax.Array, *axes: str | None, rules: Table = RULES) -> jax.Array:
    """Constrain the sharding of an intermediate value; without a mesh do nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    sharding = NamedSharding(mesh, partition_spec(axes, x.shape, mesh, rules))
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, sharding)
    return constrained


def shards_on_mesh(axis: str, size: int) -> int:
    """Return the number of shards of a dim of a logical axis on the mesh of the trace; 1 where the axis is manual."""
    mesh = jax.sharding.get_abstract_mesh()
    ways = count_shards({name: 1 if name in mesh.manual_axes else mesh.shape[name] for name in mesh.axis_names})
    return shards_of_dim(axis, size, ways)


def constrain_first_dim(x: jax.Array, axis: str, rules: Table = RULES) -> jax.Array:
    """Constrain the sharding of the first dim alone: the partitioner chooses that of the others."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    (first,) = _split_dims((axis,), x.shape[:1], mesh, rules)
    spec = PartitionSpec(first, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return constrained


def reshard(x: jax.Array, axes: Axes, gradient_axes: Axes) -> jax.Array:
    """Return an array with the sharding of some axes, whose gradient has that of other axes.

    The transpose of `constrain` has the same constraint. Where one pass gathers and the other scatters, the partitioner
    would then exchange the operands of the matmul before.
    """

    @jax.custom_vjp
    def place(x: jax.Array) -> jax.Array:
        return constrain(x, *axes)

    place.defvjp(lambda x: (place(x), None), lambda _, grads: (constrain(grads, *gradient_axes),))
    placed: jax.Array = place(x)
    return placed


def map_shards(function: Callable[..., jax.Array], in_axes: Sequence[Axes], out_axes: Axes) -> Callable[..., jax.Array]:
    """Return `function` so that it runs on each device's shards, with every mesh axis manual.

    The function sees local shapes and the partitioner leaves its operations alone. A Pallas kernel needs this. For
    gathers, scatters and sorts the partitioner may replicate the tokens. Collectives in the function name mesh axes.
    The logical axes determine the shards, as in `constrain`, and each axis of the result must be an axis of an
    argument. Without a mesh the function runs on the whole arrays.

    JAX does not check the result. The function must reduce it over each mesh axis that shards an argument but not the
    result. JAX sums the gradient of an argument over the mesh axes that do not shard the argument.

    Raises:
        ValueError: a mesh axis shards one dim of the arguments, but does not divide another dim that it should shard.
    """

    def run(*arguments: jax.Array) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            return function(*arguments)
        splits = _split_arguments(in_axes, arguments, mesh)
        *in_specs, out_specs = (PartitionSpec(*(splits[axis] for axis in axes)) for axes in (*in_axes, out_axes))
        # Most Pallas kernels do not declare over which axes their results vary, which `check_vma` requires.
        mapped: jax.Array = jax.shard_map(function, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)(
            *arguments
        )
        return mapped

    return run


def copy_for_shards(x: jax.Array, leading: Sequence[str], axes: Axes) -> jax.Array:
    """Return an array with a new dim for each leading axis, which holds one copy for each shard of that axis.

    A function of `map_shards` that gets these copies instead of the array returns one gradient for each. Their sum is
    in float32, whereas `map_shards` sums gradients in the format of the array.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = () if mesh.empty else mesh.manual_axes
    counts = [math.prod(mesh.shape.get(axis, 1) for axis in RULES[name] if axis not in manual) for name in leading]
    where = (*leading, *axes)

    @jax.custom_vjp
    def copy(x: jax.Array) -> jax.Array:
        copies = jnp.broadcast_to(x.reshape(*[1] * len(counts), *x.shape), (*counts, *x.shape))
        return constrain(copies, *where)

    def sum_copies(_: None, grads: jax.Array) -> tuple[jax.Array]:
        sums = jnp.sum(constrain(grads, *where).astype(jnp.float32), axis=range(len(counts)))
        return (sums.astype(grads.dtype),)

    copy.defvjp(lambda x: (copy(x), None), sum_copies)
    copies: jax.Array = copy(x)
    return copies


def param_shardings(axes: Any, shapes: Any, mesh: Mesh, rules: Table) -> Any:
    """Return the shardings of a tree of shapes, given a tree of logical axes of the same structure."""
    return jax.tree.map(
        lambda shape, names: NamedSharding(mesh, partition_spec(names, shape.shape, mesh, rules)), shapes, axes
    )


def zero1_shardings(axes: Any, shapes: Any, mesh: Mesh, rules: Table) -> Any:
    """Return ZeRO-1 shardings: `param_shardings`, with one more dimension sharded over `data` if one divides."""
    ways, data = count_shards(mesh.shape, rules), mesh.shape.get("data", 1)

    def spread(shape: Any, names: tuple[str, ...]) -> NamedSharding:
        entries = _split_dims(names, shape.shape, mesh, rules)
        dim = find_zero1_dim(names, shape.shape, ways, data)
        if dim is not None:
            entries[dim] = (*(entries[dim] or ()), "data")
        return NamedSharding(mesh, PartitionSpec(*entries))

    return jax.tree.map(spread, shapes, axes)


def _split_dims(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, rules: Table
) -> list[tuple[str, ...] | None]:
    """Return the mesh axes that shard each dimension; None: the dimension is replicated."""
    manual = mesh.manual_axes if isinstance(mesh, AbstractMesh) else ()
    entries: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        mesh_axes = tuple(name for name in (rules[axis] if axis else ()) if name not in manual)
        degree = 1
        for name in mesh_axes:
            degree *= mesh.shape[name]
        entries.append(mesh_axes if mesh_axes and size % degree == 0 else None)
    return entries


def _split_arguments(
    in_axes: Sequence[Axes], arguments: Sequence[jax.Array], mesh: AbstractMesh
) -> dict[str | None, tuple[str, ...] | None]:
    """Return the mesh axes that split each logical axis of the arguments; None: nothing splits it."""
    splits: dict[str | None, tuple[str, ...] | None] = {None: None}
    for axes, argument in zip(in_axes, arguments, strict=True):
        for axis, split in zip(axes, _split_dims(axes, argument.shape, mesh, RULES), strict=True):
            if splits.setdefault(axis, split) != split:
                raise ValueError(f"`{axis}` must be sharded in all arguments or in none")
    used = {name for split in splits.values() for name in split or ()}
    for axis, split in splits.items():
        if axis and split is None and used & set(RULES[axis]):
            raise ValueError(f"`{axis}` must be divisible by the mesh axes {RULES[axis]}, which shard another dim")
    return splits
