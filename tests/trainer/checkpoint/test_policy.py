"""When a save is due, as a table: no clock runs and nothing is saved."""

from math import inf

import pytest

from trainingjob_api.spec.checkpoint import Save
from trainingjob_trainer.checkpoint.policy import RETRY_SECONDS, SavePolicy

BY_STEPS = SavePolicy(4)
AFTER_SNAPSHOT = BY_STEPS.after_snapshot(restored=6, newest_saved=4)
BEHIND = BY_STEPS.after_snapshot(restored=13, newest_saved=4)
STEPS: dict[str, tuple[SavePolicy, list[int]]] = {
    "by steps": (BY_STEPS, [4, 8, 12]),
    "after each step": (SavePolicy(1), list(range(1, 15))),
    "after a snapshot, from the step that the last world owed": (AFTER_SNAPSHOT, [4, *range(8, 15)]),
    "after a snapshot, behind by more than one save": (BEHIND, [4, 8, 12, 14]),
    "after the save that was owed": (BEHIND.after_save(), [4, 8, 12]),
}


@pytest.mark.parametrize(("policy", "want"), STEPS.values(), ids=STEPS)
def test_steps_after_which_a_save_is_due(policy: SavePolicy, want: list[int]) -> None:
    assert [step for step in range(1, 15) if policy.is_due_at(step)] == want


TIMES: dict[str, tuple[float, float, bool, bool]] = {
    "by steps only": (inf, 1e9, False, False),
    "too early": (120.0, 119.9, False, False),
    "in time": (120.0, 120.0, False, True),
    "after a failure, too early": (inf, RETRY_SECONDS - 0.1, True, False),
    "after a failure": (inf, RETRY_SECONDS, True, True),
    "after a failure, where saves are more frequent": (10.0, 10.0, True, True),
}


@pytest.mark.parametrize(("every", "elapsed", "is_failing", "want"), TIMES.values(), ids=TIMES)
def test_times_after_which_a_save_is_due(every: float, elapsed: float, is_failing: bool, want: bool) -> None:
    assert SavePolicy(4, every).is_due_after(elapsed, is_failing=is_failing) is want


def test_a_spec_without_a_time_saves_by_steps() -> None:
    assert SavePolicy.from_spec(Save(every_steps=7)) == SavePolicy(7)
    assert SavePolicy.from_spec(Save(every_steps=7, every="2m")) == SavePolicy(7, 120.0)
