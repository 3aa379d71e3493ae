"""Which items of a checkpoint a state restores: by the rule of each, and by the version of the layout."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support.trainer.stores import Stores
from tests.support.trainer.training import ONE, Run, spec_with
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_trainer.checkpoint import items
from trainingjob_trainer.checkpoint.items import complete_state, describe_items, find_restorable, saved_items
from trainingjob_trainer.checkpoint.manifest import Integrity, SavedItem
from trainingjob_trainer.optim.spike_detection import empty_window
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.state import ITEM_RULES, STATE_LAYOUT, ItemRule, State

STATE = make_state((2, 2))._replace(window=empty_window(4))
ALL = frozenset({"step", "params", "opt", "non_finite", "skipped", "window"})
OTHER = "0" * 64
OTHER_MODEL = STATE._replace(params={"w": jnp.zeros((3, 5))})


def record(state: State, layout: int | None = STATE_LAYOUT, **items: SavedItem) -> Integrity:
    """Return the manifest of a saved state, with other items."""
    described = describe_items(state) if layout is not None else {}
    return Integrity(
        job_uid="uid",
        generation=1,
        step=1,
        data="data",
        state=hash_shapes(state),
        layout=layout,
        items=described | items,
        files={},
    )


def without(state: State, name: str) -> Integrity:
    saved = record(state)
    return saved.model_copy(update={"items": {key: item for key, item in saved.items.items() if key != name}})


CASES: Mapping[str, tuple[Integrity, frozenset[str] | None]] = {
    "the same state": (record(STATE), ALL),
    "an optional item is missing": (record(STATE._replace(window=None)), ALL - {"window"}),
    "a counter is missing": (without(STATE, "skipped"), ALL - {"skipped"}),
    "an optional item of other shapes": (record(STATE._replace(window=empty_window(6))), ALL - {"window"}),
    "an optional item of a newer trainer": (record(STATE, average=SavedItem(shapes=OTHER, required=False)), ALL),
    "a required item of a newer trainer": (record(STATE, frozen=SavedItem(shapes=OTHER)), None),
    "a required item is missing": (without(STATE, "opt"), None),
    "other parameters": (record(STATE, params=SavedItem(shapes=OTHER)), None),
    "a newer layout": (record(STATE, STATE_LAYOUT + 1), None),
    "of an older trainer": (record(STATE, None), ALL),
    "of an older trainer without spike detection": (record(STATE._replace(window=None), None), ALL - {"window"}),
    "of an older trainer with another model": (record(OTHER_MODEL, None), None),
}


@pytest.mark.parametrize(("saved", "want"), CASES.values(), ids=CASES.keys())
def test_find_restorable(saved: Integrity, want: frozenset[str] | None) -> None:
    assert find_restorable(STATE, saved) == want


def test_a_state_without_an_optional_item_ignores_a_saved_one() -> None:
    assert find_restorable(STATE._replace(window=None), record(STATE)) == ALL - {"window"}


def test_every_item_of_a_state_has_a_rule() -> None:
    assert set(ITEM_RULES) == set(State._fields)
    assert {name for name, rule in ITEM_RULES.items() if rule is ItemRule.REQUIRED} == {"step", "params", "opt"}


def test_missing_optional_items_start_like_those_of_a_new_job() -> None:
    """Otherwise the rule of an item would not be that of a job that begins."""
    run = Run(spec_with(protection__spikes={"window": 4}, optimizer__average={}), ONE)
    required = {name for name, rule in ITEM_RULES.items() if rule is ItemRule.REQUIRED}
    kept = {name: item for name, item in saved_items(run.state).items() if name in required}

    completed = complete_state(kept, run.steps.state_shapes)

    is_equal: Callable[..., Any] = lambda one, other: bool((one == other).all())  # noqa: E731
    assert all(jax.tree.leaves(jax.tree.map(is_equal, completed, run.state)))
    assert jax.tree.map(lambda leaf: leaf.sharding, describe(completed)) == jax.tree.map(
        lambda leaf: leaf.sharding, describe(run.state)
    )


def test_a_save_hashes_no_shapes_while_training_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(tmp_path)
    world = stores.open()
    world.restore()
    monkeypatch.setattr(items, "hash_shapes", None)

    world.save(2)

    assert world.checkpoints.newest == 2
    stores.close()
