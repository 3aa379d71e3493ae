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
    "on probation": (SavePolicy(8).on_probation(restored=4), [6, *range(7, 15)]),
    "on probation, after the first save": (SavePolicy(8).on_probation(restored=4).after_save(), [8]),
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


@pytest.mark.parametrize(("elapsed", "want"), [(29.9, False), (30.0, True)])
def test_first_save_by_time_is_due_sooner_on_probation(elapsed: float, want: bool) -> None:
    policy = SavePolicy(1000, 120.0).on_probation(restored=4)

    assert policy.is_due_after(elapsed, is_failing=False) is want
    assert not policy.after_save().is_due_after(elapsed, is_failing=False)


def test_save_that_is_owed_sooner_stays_due() -> None:
    owed = SavePolicy(100).after_snapshot(restored=13, newest_saved=0).on_probation(restored=99)

    assert owed.catch_up_step == 100


def test_a_spec_without_a_time_saves_by_steps() -> None:
    assert SavePolicy.from_spec(Save(every_steps=7)) == SavePolicy(7)
    assert SavePolicy.from_spec(Save(every_steps=7, every="2m")) == SavePolicy(7, 120.0)
