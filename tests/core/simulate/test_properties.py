"""What must hold whatever goes wrong, and when: no livelock, no oscillation, no second counted twice."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.simulated_jobs import EVERY, HOUR, PACE, endless, remembering
from trainingjob_operator.core.decide.decisions import Claim, Fail, Succeed
from trainingjob_operator.core.report.status_writes import MAX_BYTES
from trainingjob_operator.core.simulate.faults import Fault, FaultKind
from trainingjob_operator.core.simulate.simulation_run import run_job, simulate

SETTLED = 2400.0
"""Seconds after the last repair in which every slice must be at work. The first world may hang before it was measured
how long it takes to join, which is found after 1500 seconds, and pauses between failures come to 300."""
PATIENT = {"maxRestarts": 1000, "maxRestartsWithoutCommit": 1000}

KINDS = st.sampled_from(FaultKind)
FAULTS = st.lists(
    st.builds(
        Fault, at=st.floats(0, 4 * HOUR), slice=st.integers(0, 3), repair_seconds=st.floats(0.1, 2 * HOUR), kind=KINDS
    ),
    max_size=12,
)
STORMS = st.lists(
    st.builds(Fault, at=st.floats(900, 1100), slice=st.integers(0, 3), repair_seconds=st.floats(0.1, 100), kind=KINDS),
    max_size=12,
)
"""All within some minutes: faults strike worlds that are being judged, formed and left."""


def end_of(faults: list[Fault]) -> float:
    return max((fault.at + fault.repair_seconds for fault in faults), default=0.0) + PACE.pod_start + SETTLED


HANG_AFTER_RESIZING = [
    Fault(79.0, 0, 468.0, FaultKind.LOSS),
    Fault(84.0, 3, 463.0, FaultKind.LOSS),
    Fault(463.0, 1, 1.0, FaultKind.HANG),
    Fault(557.0, 1, 1.0, FaultKind.LOSS),
    Fault(620.0, 2, 1.0, FaultKind.HANG),
]
"""The time until the last hang is detected began while the job waited to grow."""


@settings(max_examples=25, deadline=None)
@given(FAULTS | STORMS, st.sampled_from([(), (1, 2, 4), (2, 4)]), st.integers(1, 2), st.booleans())
def test_any_faults_leave_one_valid_world_and_all_slices_return(
    faults: list[Fault], allowed: tuple[int, ...], fewest: int, remembers: bool
) -> None:
    plan, end = endless(fewest, 4, allowed, **PATIENT), end_of(faults)
    plan = remembering(plan) if remembers else plan
    generation = saved = 0

    for life, decision in run_job(plan, PACE, faults, end):
        assert life.committed_step >= saved
        saved = life.committed_step
        if isinstance(decision, Claim) and decision.world.generation != generation:
            assert decision.world.generation > generation
            generation = decision.world.generation
            assert len(decision.world.slices) in plan.allowed_sizes
            assert len(set(decision.world.slices)) == len(decision.world.slices)
        assert not isinstance(decision, (Succeed, Fail))

    assert life.training
    assert life.training.slices == (0, 1, 2, 3)
    assert not life.is_broken
    assert life.training.state_at(life.now).step > life.training.restored_step
    assert life.num_worlds <= 2 * len(faults) + 1
    assert life.status.restarts.counted <= sum(fault.kind in (FaultKind.CRASH, FaultKind.HANG) for fault in faults)
    assert len(life.status.model_dump_json()) < MAX_BYTES + 4096


@settings(max_examples=25, deadline=None)
@given(FAULTS | STORMS)
@example(HANG_AFTER_RESIZING)
def test_every_second_is_in_one_place_and_none_is_taken_back(faults: list[Fault]) -> None:
    reported = 0.0

    for life, _ in run_job(endless(**PATIENT), PACE, faults, end_of(faults)):
        spent = sum(life.status.goodput.seconds.values())
        assert all(seconds >= 0 for seconds in life.status.goodput.seconds.values())
        assert spent >= reported - 0.01
        reported = spent

    assert reported == pytest.approx(life.now, rel=0.005)
    of_attempts = sum(sum(one.seconds.values()) for one in life.status.attempts)
    assert of_attempts <= reported + 0.1


def test_detection_of_a_hang_counts_whatever_the_world_waited_for() -> None:
    outcome = simulate(endless(**PATIENT), PACE, HANG_AFTER_RESIZING, end_of(HANG_AFTER_RESIZING))

    hung = outcome.status.attempts[4]
    assert hung.cause
    assert "no host of the world made progress for 2 m 41 s" in hung.cause.message
    assert hung.seconds["detecting"] == pytest.approx(161.0, abs=1.0)


@settings(max_examples=25, deadline=None)
@given(FAULTS | STORMS)
def test_no_more_steps_are_lost_than_lie_between_two_saves(faults: list[Fault]) -> None:
    outcome = simulate(endless(**PATIENT), PACE, faults, end_of(faults))
    longest_save = math.ceil(PACE.save / PACE.step_seconds[4])

    for attempt in outcome.status.attempts:
        assert (attempt.lost_steps or 0) <= EVERY + longest_save + 1


IN_A_ROW = [
    Fault(209.1, 1, 77.2, FaultKind.LOSS),
    Fault(351.7, 1, 86.1, FaultKind.LOSS),
    Fault(918.0, 1, 11.4, FaultKind.HANG),
    Fault(975.7, 2, 142.8, FaultKind.SILENCE),
    Fault(978.1, 1, 76.4, FaultKind.OUTAGE),
    Fault(1006.8, 2, 68.0, FaultKind.NOTICE),
    Fault(1017.1, 3, 139.0, FaultKind.LOSS),
    Fault(1030.6, 0, 26.3, FaultKind.CRASH),
    Fault(1106.9, 0, 79.4, FaultKind.CRASH),
    Fault(1125.4, 0, 92.1, FaultKind.NOTICE),
    Fault(1128.0, 3, 21.4, FaultKind.LOSS),
    Fault(1128.6, 1, 94.2, FaultKind.CRASH),
    Fault(1170.8, 3, 174.9, FaultKind.OUTAGE),
    Fault(1177.0, 1, 124.3, FaultKind.LOSS),
    Fault(1198.0, 0, 117.1, FaultKind.CRASH),
]
"""Ends of worlds, each of which goes on from memory before the next multiple of the interval is saved."""


def test_saves_keep_up_with_successive_worlds_that_resume_from_snapshots() -> None:
    longest_save = math.ceil(PACE.save / PACE.step_seconds[4])

    for life, _ in run_job(remembering(endless(**PATIENT)), PACE, IN_A_ROW, end_of(IN_A_ROW)):
        saved = max(life.committed_step, life.training.state_at(life.now).committed if life.training else 0)
        assert life.step - saved <= EVERY + longest_save + 1


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(FAULTS | STORMS)
def test_the_same_faults_make_the_same_life(faults: list[Fault]) -> None:
    lives = [simulate(endless(**PATIENT), PACE, faults, end_of(faults)) for _ in range(2)]

    assert lives[0] == lives[1]


@pytest.mark.parametrize("budget", range(4))
def test_the_budget_of_restarts_is_exact(budget: int) -> None:
    crashes = [Fault(HOUR * (number + 1), number, 0.0, FaultKind.CRASH) for number in range(3)]
    outcome = simulate(endless(maxRestarts=budget), PACE, crashes, 4 * HOUR)

    assert (outcome.status.phase == "Failed") == (len(crashes) > budget)
    assert outcome.status.restarts.counted == min(len(crashes), budget)
    assert outcome.num_worlds == 1 + min(len(crashes), budget)
    assert outcome.seconds == pytest.approx(HOUR * min(budget + 1, 4), abs=60)
