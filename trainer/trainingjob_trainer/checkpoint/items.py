"""The items of a state in a checkpoint: which are saved, and which are restored by the rule of each.

A manifest has the layout of the state and the shapes of each item. So an item that the state gains or loses later does
not make the checkpoint unreadable.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_trainer.checkpoint.manifest import Integrity, SavedItem
from trainingjob_trainer.models.trainable import copy_params
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.state import FROZEN_LAYOUT, ITEM_RULES, STATE_LAYOUT, ItemRule, State

LOG = logging.getLogger(__name__)


def saved_items(state: State) -> dict[str, Any]:
    """Return the items of a state that are saved, by name: absent items are left out."""
    return {name: value for name, value in state._asdict().items() if value is not None}


def describe_items(state: State) -> dict[str, SavedItem]:
    """Return the entries of a state's items for the manifest."""
    return {
        name: SavedItem(shapes=hash_shapes(item), required=ITEM_RULES[name] is ItemRule.REQUIRED)
        for name, item in saved_items(state).items()
    }


class StateShapes(NamedTuple):
    """The hash of all shapes of a state, which older trainers compare, and the entries of its items."""

    whole: str
    items: dict[str, SavedItem]


def describe_state(state: State) -> StateShapes:
    """Return the shapes of a state as a manifest has them. They are the same for all steps of a world."""
    return StateShapes(hash_shapes(state), describe_items(state))


def find_restorable(state: State, saved: Integrity) -> frozenset[str] | None:  # None: the state does not fit
    """Return the names of the items to restore into a state. `state` has its shapes."""
    if saved.layout is None:
        return _find_in_older(state, saved.state)
    own = describe_items(state)
    equal = frozenset(name for name in own.keys() & saved.items.keys() if own[name].shapes == saved.items[name].shapes)
    required = {name for items in (own, saved.items) for name, item in items.items() if item.required}
    layout = FROZEN_LAYOUT if saved.frozen else STATE_LAYOUT
    return equal if saved.layout == layout and required <= equal else None


def complete_state(restored: Mapping[str, Any], state: State) -> State:
    """Return a state of restored items. The others that `state` describes start by the rule of each."""
    items = saved_items(state)
    missing = sorted(items.keys() - restored.keys())
    if missing:
        LOG.info("the checkpoint lacks items, which start afresh items=%s", ",".join(missing))
    return State(**restored, **{name: _start_item(name, items[name], restored) for name in missing})


def _start_item(name: str, abstract_tree: Any, restored: Mapping[str, Any]) -> Any:
    """Return the value of an item that a checkpoint lacks."""
    if ITEM_RULES[name] is ItemRule.PARAMS:
        return copy_params(abstract_tree, restored["params"])
    return _zeros(abstract_tree)


def _find_in_older(state: State, shapes: str) -> frozenset[str] | None:
    """Return the items of a checkpoint without a layout, which has one hash of all shapes."""
    forms = (state, state._replace(window=None))
    return next((frozenset(saved_items(form)) for form in forms if hash_shapes(form) == shapes), None)


def _zeros(abstract_tree: Any) -> Any:
    def make(leaf: Any) -> jax.Array:
        zeros = np.zeros(leaf.shape, jnp.dtype(leaf.dtype))
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda place: zeros[place])

    return jax.tree.map(make, abstract_tree)


def select(state: State, names: Collection[str]) -> dict[str, Any]:
    """Return items of a state by name."""
    return {name: item for name, item in saved_items(state).items() if name in names}
