"""Mapping of logical axes to mesh axes: the model names its dimensions, and the API's table shards them."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from trainingjob_api.sharding import RULES, Table, count_ways, find_spread_dim


def partition(
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
    sharding = NamedSharding(mesh, partition(axes, x.shape, mesh, rules))
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, sharding)
    return constrained


def shard_like(axes: Any, shapes: Any, mesh: Mesh, rules: Table) -> Any:
    """Return the shardings of a tree of shapes, given a tree of logical axes of the same structure."""
    return jax.tree.map(
        lambda shape, names: NamedSharding(mesh, partition(names, shape.shape, mesh, rules)), shapes, axes
    )


def spread_like(axes: Any, shapes: Any, mesh: Mesh, rules: Table) -> Any:
    """Return ZeRO-1 shardings: those of `shard_like`, with one dimension also sharded over `data` if one divides."""
    ways, data = count_ways(mesh.shape, rules), mesh.shape.get("data", 1)

    def spread(shape: Any, names: tuple[str, ...]) -> NamedSharding:
        entries = _split_dims(names, shape.shape, mesh, rules)
        dim = find_spread_dim(names, shape.shape, ways, data)
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
        wanted = tuple(name for name in (rules[axis] if axis else ()) if name not in manual)
        degree = 1
        for name in wanted:
            degree *= mesh.shape[name]
        entries.append(wanted if wanted and size % degree == 0 else None)
    return entries
