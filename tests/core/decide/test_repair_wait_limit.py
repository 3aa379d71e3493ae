"""How long a job waits for lost slices, by its own earlier repairs."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import NOW
from trainingjob_api.status.world_status import Attempt, Cause
from trainingjob_operator.core.decide.repair_wait_limit import (
    DEFAULT_RESTART_SECONDS,
    RepairHistory,
    describe_repair_history,
    max_repair_wait,
    read_repair_history,
)
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time

CASES: dict[str, tuple[tuple[float, ...], float, float, float]] = {
    "nothing is known: two restarts of all the slices": ((), 30.0, 0.5, 120.0),
    "repairs are short": ((50.0, 60.0), 30.0, 0.5, 120.0),
    "repairs are as long as a wait is worth": ((120.0,), 30.0, 0.5, 120.0),
    "repairs are long": ((500.0, 700.0), 30.0, 0.5, 0.0),
    "most are short, and who waits for long waits for very long": ((20.0,) * 9 + (900.0,), 30.0, 0.5, 20.0),
    "one was longer than it was worth, and no other": ((10.0, 10.0, 10.0, 130.0), 30.0, 0.5, 130.0),
    "little is left to train with": ((500.0, 700.0), 30.0, 0.05, 1200.0),
}


@pytest.mark.parametrize(("repairs", "restart", "share", "want"), CASES.values(), ids=CASES.keys())
def test_patience(repairs: tuple[float, ...], restart: float, share: float, want: float) -> None:
    assert max_repair_wait(repairs, restart, share) == want


times = st.floats(0.1, 1e6)
shares = st.floats(0.05, 1.0)


def cost(repair: float, patience: float, restart: float, share: float) -> float:
    """Return the seconds of training that a repair costs beyond the one restart that each loss costs at least."""
    return share * repair if repair <= patience else share * patience + 2 * restart


@given(st.lists(times, min_size=1, max_size=20), times, shares)
def test_limit_costs_at_most_as_much_as_unlimited_wait_or_immediate_shrink(
    repairs: list[float], restart: float, share: float
) -> None:
    patience = max_repair_wait(repairs, restart, share)
    spent = sum(cost(repair, patience, restart, share) for repair in repairs)

    assert patience >= 0
    assert spent <= share * sum(repairs) * (1 + 1e-9)
    assert spent <= 2 * restart * len(repairs) * (1 + 1e-9)


@given(times, times, shares)
def test_default_limit_costs_at_most_twice_the_optimum(repair: float, restart: float, share: float) -> None:
    best = min(share * repair, 2 * restart)

    assert cost(repair, max_repair_wait((), restart, share), restart, share) <= 2 * best * (1 + 1e-9)


@given(st.lists(times, max_size=20), times, shares)
def test_costlier_restart_never_turns_a_wait_into_a_shrink(repairs: list[float], restart: float, share: float) -> None:
    """Whether to wait at all is settled by the mean; a dearer restart never turns that into shrinking at once."""
    if max_repair_wait(repairs, restart, share) > 0:
        assert max_repair_wait(repairs, 2 * restart, share) > 0


def attempt(
    number: int, slices: int, begin: float, end: float | None, reason: str = "", recovery: float | None = None
) -> Attempt:
    return Attempt(
        generation=number,
        slices=slices,
        started=format_time(NOW + timedelta(seconds=begin)),
        ended=None if end is None else format_time(NOW + timedelta(seconds=end)),
        cause=Cause(reason=reason) if reason else None,
        recovery_seconds=recovery,
    )


LIVES: dict[str, tuple[list[Attempt], RepairHistory]] = {
    "nothing yet": ([attempt(1, 2, 0, None)], RepairHistory((), DEFAULT_RESTART_SECONDS, is_measured=False)),
    "waited for": (
        [attempt(1, 2, 0, 100, Reason.NODE_LOST), attempt(2, 2, 160, None, recovery=72.0)],
        RepairHistory((60.0,), 12.0, is_measured=True),
    ),
    "shrunk and grown": (
        [
            attempt(1, 3, 0, 100, Reason.HEARTBEAT_LOST),
            attempt(2, 2, 101, 400, Reason.RESIZED, recovery=9.0),
            attempt(3, 3, 401, None, recovery=11.0),
        ],
        RepairHistory((301.0,), 9.0, is_measured=True),
    ),
    "still away": (
        [attempt(1, 3, 0, 100, Reason.HEARTBEAT_LOST), attempt(2, 2, 101, None)],
        RepairHistory((), DEFAULT_RESTART_SECONDS, is_measured=False),
    ),
    "suspended meanwhile": (
        [
            attempt(1, 3, 0, 100, Reason.NODE_LOST),
            attempt(2, 2, 101, 400, Reason.SUSPENDED),
            attempt(3, 3, 90_000, None),
        ],
        RepairHistory((), DEFAULT_RESTART_SECONDS, is_measured=False),
    ),
    "no slice was lost": (
        [attempt(1, 2, 0, 100, "Crash"), attempt(2, 2, 101, None, recovery=5.0)],
        RepairHistory((), 4.0, is_measured=True),
    ),
    "times that are none": (
        [
            attempt(1, 2, 0, 100, Reason.NODE_LOST),
            attempt(2, 2, 160, None, recovery=72.0).model_copy(update={"started": ""}),
        ],
        RepairHistory((), DEFAULT_RESTART_SECONDS, is_measured=False),
    ),
}


@pytest.mark.parametrize(("attempts", "want"), LIVES.values(), ids=LIVES.keys())
def test_repairs_are_read_from_attempts(attempts: list[Attempt], want: RepairHistory) -> None:
    assert read_repair_history(attempts) == want


@pytest.mark.parametrize(
    ("known", "want"),
    [
        (RepairHistory((), 60.0, is_measured=False), "no repair is known yet, a restart is assumed to take 1 m 0 s"),
        (RepairHistory((50.0, 70.0), 12.0, is_measured=True), "2 repairs took 1 m 0 s on average, a restart took 12 s"),
    ],
)
def test_message_contains_the_durations(known: RepairHistory, want: str) -> None:
    assert describe_repair_history(known) == want
