"""Which items of a state a checkpoint has, and which states of older trainers are accepted."""

from typing import Any

from trainingjob_trainer.optim.spike_detection import empty_window_like
from trainingjob_trainer.state import State


def saved_items(state: State) -> dict[str, Any]:
    """Return the items of a state that are saved, by name: absent items are left out."""
    return {name: value for name, value in state._asdict().items() if value is not None}


def accepted_forms(state: State) -> list[State]:
    """Return the forms in which a state may have been saved, its own first."""
    return [state] if state.window is None else [state, state._replace(window=None)]


def add_missing_items(restored: State, state: State) -> State:
    """Return a restored state with the items that its form lacks. A missing loss window is an empty one."""
    if state.window is None or restored.window is not None:
        return restored
    return restored._replace(window=empty_window_like(state.window))
