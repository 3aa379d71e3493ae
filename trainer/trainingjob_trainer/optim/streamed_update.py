"""An update whose optimizer state is in host memory: it comes to the device piece by piece.

A piece is a layer of stacked tensors, or a tensor of its kind alone. All layers of a stack share a loop. The arrays of
the loop stay where they are: an iteration reads its layer of each, and writes it back.

A stack whose layers are sharded has as many layers in an iteration as shards, one of each. No layer then leaves its
device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from trainingjob_api.network.network import Network
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.optim.slot_paths import Slots, find_tensor_name
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.host_memory import bring, is_on_host, send


class Update(NamedTuple):
    """Parameters and slots after an update, and the sum of squares of each tensor's direction."""

    params: Params
    slots: Slots
    squares: Params | None


type UpdateTensors = Callable[[Any, Slots, Params], Update]
"""A function of (gradients, slots, params) that updates each tensor by itself. Trees may lack tensors."""


def choose_update(
    slots: Slots, params: Params, network: Network, mesh: Mesh
) -> Callable[[UpdateTensors, Any, Slots, Params], Update]:
    """Return how tensors are updated: all at once, or piece by piece if slots are on the host.

    `slots` and `params` have the shapes and shardings of the arrays.
    """
    if not any(map(is_on_host, jax.tree.leaves(slots))):
        return lambda update, *trees: update(*trees)
    return StreamedUpdate(
        slots, params, frozenset(tensor.name for tensor in network.tensors if tensor.is_stacked), mesh
    )


@dataclass(frozen=True)
class _Piece:
    """Tensors that come to the device together."""

    names: frozenset[str]
    num_steps: int = 0
    """Iterations over their layers. 0: they are not stacked."""
    num_shards: int = 1
    """Shards of their layers: each iteration has one layer of each."""


class StreamedUpdate:
    """Updates tensors piece by piece. `slots` and `params` hold the shapes and shardings of the arrays."""

    def __init__(self, slots: Slots, params: Params, stacked: frozenset[str], mesh: Mesh) -> None:
        self._mesh = mesh
        self._on_host = jax.tree.map(is_on_host, slots)
        self._pieces = tuple(_list_pieces(slots, params, stacked))

    def __call__(self, update: UpdateTensors, grads: Any, slots: Slots, params: Params) -> Update:
        """Return the update of all tensors."""
        done: list[Update] = []
        for piece in self._pieces:
            part = tuple(_take(tree, piece.names) for tree in (grads, slots, params))
            group_on_host = _take(self._on_host, piece.names)
            if done:
                part = self._wait(part, done[-1].params, is_whole=not piece.num_steps)
            run = partial(_update_layers, piece) if piece.num_steps else _update_whole
            done.append(run(update, group_on_host, *part))
        return _merge(done)

    def _wait(self, part: tuple[Any, ...], earlier: Params, *, is_whole: bool) -> tuple[Any, ...]:
        """Return a piece whose arrays exist only after the parameters of an earlier one."""
        grads, slots, params = part
        grads, params = order_collectives((grads, params), earlier, mesh=self._mesh)
        if is_whole:  # the scheduler would otherwise bring all pieces at once
            slots, _ = jax.lax.optimization_barrier((slots, earlier))
        return grads, slots, params


def _list_pieces(slots: Slots, params: Params, stacked: frozenset[str]) -> Iterator[_Piece]:
    """Yield the pieces: the stacks, each other tensor with slots in host memory, and then all others."""
    offloaded: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(slots):
        name = find_tensor_name(path)
        if name is not None and is_on_host(leaf):
            offloaded.setdefault(name, 1)
    for tree in (slots, params):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (name := find_tensor_name(path)) in offloaded and name in stacked:
                offloaded[name] = max(offloaded[name], leaf.shape[0] // leaf.sharding.shard_shape(leaf.shape)[0])
    sizes = {find_tensor_name(path): leaf.shape[0] for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    stacks: dict[tuple[int, int], set[str]] = {}
    for name, shards in offloaded.items():
        if name in stacked:
            stacks.setdefault((sizes[name] // shards, shards), set()).add(name)
    yield from (_Piece(frozenset(names), steps, shards) for (steps, shards), names in stacks.items())
    yield from (_Piece(frozenset((name,))) for name in offloaded if name not in stacked)
    yield _Piece(frozenset(name for name in sizes if name is not None and name not in offloaded))


def _update_whole(update: UpdateTensors, on_host: Any, grads: Any, slots: Slots, params: Params) -> Update:
    done = update(grads, bring(slots, on_host), params)
    return done._replace(slots=send(done.slots, on_host))


def _update_layers(
    piece: _Piece, update: UpdateTensors, on_host: Any, grads: Any, slots: Slots, params: Params
) -> Update:
    """Return the update of stacked tensors, in a loop over their layers."""
    shards = piece.num_shards

    def run(number: jax.Array, carry: Update) -> Update:
        read, write = partial(_read_layer, number, shards), partial(_write_layer, number, shards)
        # Counters are those before the step in every iteration.
        layer = _map_arrays(lambda stack, _: read(stack), carry.slots, slots)
        done = update(jax.tree.map(read, grads), bring(layer, on_host), jax.tree.map(read, carry.params))
        return Update(
            params=jax.tree.map(write, carry.params, done.params),
            slots=_map_arrays(write, carry.slots, send(done.slots, on_host)),
            squares=jax.tree.map(jnp.add, carry.squares, done.squares),
        )

    split, join = partial(_split_layers, shards), partial(_join_layers, shards)
    squares = jax.eval_shape(lambda *trees: _update_whole(update, on_host, *trees).squares, grads, slots, params)
    grads = jax.tree.map(split, grads)
    before = Update(
        jax.tree.map(split, params), _map_arrays(split, slots), jax.tree.map(lambda _: jnp.zeros(()), squares)
    )
    done: Update = jax.lax.fori_loop(0, piece.num_steps, run, before)
    return done._replace(params=jax.tree.map(join, done.params), slots=_map_arrays(join, done.slots))


def _split_layers(shards: int, stack: jax.Array) -> jax.Array:
    """Return an array [shards, layers of each, ...] of [layers, ...]; with one shard, the array itself."""
    return stack.reshape(shards, -1, *stack.shape[1:]) if shards > 1 else stack


def _join_layers(shards: int, stack: jax.Array) -> jax.Array:
    return stack.reshape(-1, *stack.shape[2:]) if shards > 1 else stack


def _read_layer(number: jax.Array, shards: int, stack: jax.Array) -> jax.Array:
    """Return one layer of each shard: an array [shards, ...]."""
    layer: jax.Array = (
        jax.lax.dynamic_slice_in_dim(stack, number, 1)
        if shards == 1
        else jax.lax.dynamic_index_in_dim(stack, number, 1, keepdims=False)
    )
    return layer


def _write_layer(number: jax.Array, shards: int, stack: jax.Array, layer: jax.Array) -> jax.Array:
    """Return a stack with another layer of each shard."""
    written: jax.Array = (
        jax.lax.dynamic_update_slice_in_dim(stack, layer, number, 0)
        if shards == 1
        else jax.lax.dynamic_update_index_in_dim(stack, layer, number, 1)
    )
    return written


def _map_arrays(function: Callable[..., jax.Array], slots: Slots, *others: Slots) -> Slots:
    """Return slots with a function of the arrays of tensors, and other leaves from the last tree."""
    mapped: Slots = jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(*leaves) if find_tensor_name(path) else leaves[-1], slots, *others
    )
    return mapped


def _take(tree: Any, names: frozenset[str]) -> Any:
    """Return a tree with None for the tensors of other names. Counters stay."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if find_tensor_name(path) in (None, *names) else None, tree, is_leaf=_is_masked
    )


def _merge(parts: list[Update]) -> Update:
    """Return the tree of all parts. All have the same counters."""
    merged: Update = jax.tree.map(
        lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None),
        *parts,
        is_leaf=lambda leaf: leaf is None or _is_masked(leaf),
    )
    return merged


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
