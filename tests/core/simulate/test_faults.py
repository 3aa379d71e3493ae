"""Each kind of fault as the rules see it, and what they make of it."""

import pytest

from tests.support.simulated_jobs import EVERY, HOUR, PACE, endless
from trainingjob_operator.core.decide.decisions import CollectDiagnostics, Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.simulate.faults import Fault, FaultKind, Spares
from trainingjob_operator.core.simulate.simulated_job import START_TIME
from trainingjob_operator.core.simulate.simulation_run import run_job, simulate
from trainingjob_operator.core.times import format_time, parse_time, seconds_between


def test_a_crash_starts_the_same_slices_again_and_counts() -> None:
    outcome = simulate(endless(), PACE, [Fault(1000.0, 2, 0.0, FaultKind.CRASH)], HOUR)
    first, again = outcome.status.attempts

    assert first.cause
    assert (first.cause.reason, first.cause.slice, again.slices) == ("Killed", 2, 4)
    assert again.lost_steps
    assert again.lost_steps <= EVERY + PACE.save / PACE.step_seconds[4] + 1
    assert (outcome.status.restarts.total, outcome.status.restarts.counted) == (1, 1)


def test_a_hang_is_examined_and_its_host_is_named() -> None:
    decisions = [decision for _, decision in run_job(endless(), PACE, [Fault(1000.0, 2, 0.0, FaultKind.HANG)], HOUR)]
    outcome = simulate(endless(), PACE, [Fault(1000.0, 2, 0.0, FaultKind.HANG)], HOUR)
    first, again = outcome.status.attempts

    assert any(isinstance(decision, CollectDiagnostics) for decision in decisions)
    assert first.cause
    assert (first.cause.reason, first.cause.slice, again.slices) == ("HungHost", 2, 4)
    assert (outcome.status.restarts.total, outcome.status.restarts.counted) == (1, 0)
    assert outcome.status.goodput.seconds["detecting"] == pytest.approx(32, abs=4)


def test_a_hang_while_a_world_is_joined_is_found_by_what_joining_took_before() -> None:
    faults = [Fault(1000.0, 2, 0.0, FaultKind.CRASH), Fault(1002.0, 1, 0.0, FaultKind.HANG)]
    outcome = simulate(endless(), PACE, faults, 3 * HOUR)

    assert [one.cause and one.cause.reason for one in outcome.status.attempts] == ["Killed", "HungHost", None]


def test_a_host_that_is_cut_off_from_the_operator_trains_on() -> None:
    fault = [Fault(1000.0, 2, 600.0, FaultKind.SILENCE)]
    decisions = [decision for _, decision in run_job(endless(), PACE, fault, HOUR)]
    outcome, quiet = (simulate(endless(), PACE, some, HOUR) for some in (fault, []))

    assert any(isinstance(decision, Wait) and decision.reason == Reason.HOST_UNCERTAIN for decision in decisions)
    assert (outcome.num_worlds, outcome.step) == (1, quiet.step)


def test_partitioned_slice_joins_the_second_next_world() -> None:
    faults = [Fault(1000.0, 2, 600.0, FaultKind.SILENCE), Fault(1100.0, 1, 0.0, FaultKind.CRASH)]
    outcome = simulate(endless(), PACE, faults, HOUR)

    assert [one.slices for one in outcome.status.attempts] == [4, 3, 4]


def test_world_drains_before_an_announced_node_loss() -> None:
    outcome = simulate(endless(), PACE, [Fault(1000.0, 2, 600.0, FaultKind.NOTICE)], HOUR)
    _, smaller, grown = outcome.status.attempts

    assert (smaller.slices, smaller.lost_steps, grown.slices) == (3, 0, 4)
    assert outcome.status.restarts.total == 0


def test_job_uses_a_needed_node_until_it_is_lost() -> None:
    outcome = simulate(endless(2, 2), PACE, [Fault(1000.0, 1, 600.0, FaultKind.NOTICE)], HOUR)
    first, again = outcome.status.attempts

    assert first.cause
    assert (first.cause.reason, again.slices) == ("HeartbeatLost", 2)
    assert sum(first.seconds.values()) == pytest.approx(1120, abs=80)


def test_a_fault_strikes_nothing_that_is_gone_or_that_trains_nothing() -> None:
    lost = Fault(1000.0, 2, 600.0)
    others = [Fault(1050.0, 2, 10.0, kind) for kind in FaultKind if kind is not FaultKind.OUTAGE]
    of_no_member = [Fault(30.0, 1, 10.0, FaultKind.CRASH), Fault(31.0, 1, 10.0, FaultKind.HANG)]

    outcomes = [simulate(endless(), PACE, faults, HOUR).status for faults in ([lost], [lost, *others, *of_no_member])]

    assert outcomes[0] == outcomes[1]


def test_a_node_that_is_lost_before_its_time_comes_back_once() -> None:
    twice = [Fault(1000.0, 2, 600.0, FaultKind.NOTICE), Fault(1010.0, 2, 600.0, FaultKind.NOTICE)]
    sooner = [*twice, Fault(1060.0, 2, 300.0)]

    assert simulate(endless(), PACE, twice, HOUR).status == simulate(endless(), PACE, twice[:1], HOUR).status
    assert [one.slices for one in simulate(endless(), PACE, sooner, HOUR).status.attempts] == [4, 3, 4]


def test_partitioned_and_then_lost_slice_returns() -> None:
    faults = [
        Fault(1000.0, 2, 100.0, FaultKind.SILENCE),
        Fault(1010.0, 2, 900.0, FaultKind.SILENCE),
        Fault(1050.0, 2, 300.0),
    ]
    outcome = simulate(endless(), PACE, faults, HOUR)

    assert [one.slices for one in outcome.status.attempts] == [4, 3, 4]


def test_an_operator_that_comes_back_takes_over_a_world_that_trains() -> None:
    outcome, quiet = (
        simulate(endless(), PACE, faults, HOUR) for faults in ([Fault(1000.0, 0, 300.0, FaultKind.OUTAGE)], [])
    )

    assert (outcome.num_worlds, outcome.step) == (1, quiet.step)
    assert outcome.status.goodput.seconds == pytest.approx(quiet.status.goodput.seconds, abs=1)


def test_loss_during_an_operator_outage_is_detected_afterwards() -> None:
    faults = [Fault(1000.0, 0, 300.0, FaultKind.OUTAGE), Fault(1100.0, 2, 900.0)]
    outcome = simulate(endless(), PACE, faults, HOUR)

    first, smaller, grown = outcome.status.attempts

    assert [one.slices for one in (first, smaller, grown)] == [4, 3, 4]
    assert seconds_between(format_time(START_TIME), parse_time(smaller.started) or START_TIME) == pytest.approx(
        1315, abs=2
    )


def test_a_second_outage_ends_when_the_longer_one_does() -> None:
    both = [
        Fault(1000.0, 0, 600.0, FaultKind.OUTAGE),
        Fault(1100.0, 0, 60.0, FaultKind.OUTAGE),
        Fault(1200.0, 1, 600.0),
    ]
    seen = [(life.now, life.is_operator_down) for life, _ in run_job(endless(), PACE, both, HOUR)]

    assert [now for now, is_away in seen if is_away] == [1000.0, 1100.0, 1160.0, 1200.0, 1240.0]


def test_a_node_that_ends_worlds_again_and_again_is_left_for_another() -> None:
    faults = [Fault(1000.0 * number, 2, 0.0, FaultKind.CRASH) for number in (1, 2, 3)]
    outcome = simulate(endless(), PACE, faults[:2], HOUR)

    assert [one.slices for one in outcome.status.attempts] == [4, 4, 3, 4]
    assert [(one.node, one.faults) for one in outcome.status.nodes] == [("node-2-0", 2)]
    assert [one.cause and one.cause.node for one in simulate(endless(), PACE, faults, 2 * HOUR).status.attempts] == [
        "node-2-0",
        "node-2-0",
        "",
        "node-2-1",
        None,
    ]


def test_slice_recreated_on_another_node_needs_no_repair() -> None:
    faults = [Fault(1000.0, 2, 0.0, FaultKind.CRASH), Fault(2000.0, 2, 600.0)]
    *_, (life, _) = run_job(endless(), PACE, faults, HOUR)

    assert [one.slices for one in life.status.attempts] == [4, 4, 3, 4]
    assert life.slices[2].incarnation == 1


def test_slices_that_are_lost_together_cost_one_restart() -> None:
    together = [Fault(1000.0, number, 600.0) for number in (1, 2, 3)]
    outcome = simulate(endless(), PACE, together, HOUR)

    assert [one.slices for one in outcome.status.attempts] == [4, 1, 4]
    assert outcome.status.restarts.total == 1


def test_long_node_loss_costs_only_its_share_of_the_steps() -> None:
    outcome = simulate(endless(), PACE, [Fault(1000.0, 3, 72 * HOUR)], 48 * HOUR)

    assert outcome.num_worlds == 2
    assert outcome.throughput == pytest.approx(PACE.step_seconds[4] / PACE.step_seconds[3], abs=0.02)


SPARES: dict[str, tuple[int, list[Fault], list[float]]] = {
    "there are none": (0, [Fault(10, 0, 100)], [110]),
    "one is free": (1, [Fault(10, 0, 100)], [10]),
    "the lost one becomes a spare": (1, [Fault(10, 0, 100), Fault(20, 1, 1000)], [10, 110]),
    "its own repair is sooner": (1, [Fault(10, 0, 1000), Fault(20, 1, 100)], [10, 120]),
}


@pytest.mark.parametrize(("count", "faults", "want"), SPARES.values(), ids=SPARES.keys())
def test_spares(count: int, faults: list[Fault], want: list[float]) -> None:
    spares = Spares(count)

    assert [spares.replacement_time(fault.at, fault.repair_seconds) for fault in faults] == want
