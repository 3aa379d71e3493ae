"""Violations that a soak must detect, in constructed histories, and the distribution of its bursts."""

from random import Random
from typing import Any

import pytest

from e2e.soak.faults import CLOCK_FAULT, COUNTED_FAULTS, UNCOUNTED_FAULTS
from e2e.soak.invariants import InvariantChecker, find_problems
from e2e.soak.report import list_recoveries
from e2e.soak.result_check import check_result, find_split_brain
from e2e.soak.soak_run import MAX_BURST_FAULTS, capture_errors, draw_burst
from tests.support.builders import make_report
from trainingjob_api.protocol import Progress
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.shell.logging_setup import Log

TIME = "2026-11-21T12:00:00Z"
CRASHED = {
    "generation": 1,
    "slices": 2,
    "started": TIME,
    "ended": TIME,
    "cause": {"reason": "Crash"},
    "restarted": True,
}


def make_status(**changes: Any) -> TrainingJobStatus:
    """Return the status of a job that trains in its second world."""
    status = {
        "phase": "Running",
        "world": {"generation": 2, "slices": [0], "coordinator": "h:1", "members": "x", "since": TIME},
        "attempts": [
            CRASHED,
            {"generation": 2, "slices": 1, "started": TIME, "recoverySeconds": 1.5},
        ],
        "lineage": [{"generation": 1, "first": 1, "last": 4}, {"generation": 2, "first": 5}],
        "goodput": {"seconds": {"training": 10.0}},
        "restarts": {"total": 1},
    }
    return TrainingJobStatus.model_validate(status | changes)


WORLD = make_status().model_dump(by_alias=True, exclude_none=True)["world"]
LIVING = {"generation": 1, "slices": 2, "started": TIME}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a job that failed": ({"phase": "Failed"}, "the job failed: "),
    "a world that is forgotten": ({"world": None}, "the world was forgotten"),
    "a number that falls": ({"world": {**WORLD, "generation": 1}, "attempts": [LIVING]}, "generation 1 came after 2"),
    "members that change": ({"world": {**WORLD, "members": "y"}}, "generation 2 changed its members"),
    "two worlds": (
        {"attempts": [LIVING, {**LIVING, "generation": 2}]},
        "2 worlds live at once: generations 1, 2",
    ),
    "a world without a life": ({"attempts": [{**LIVING, "ended": TIME}]}, "generation 2 has no attempt"),
    "restarts that are forgotten": ({"restarts": {"total": 0}}, "1 restarts became 0"),
    "a restart that no attempt ended with": (
        {"restarts": {"total": 2}},
        "1 restarts were counted, and 0 attempts ended with one: generations []",
    ),
    "an attempt whose restart is not counted": (
        {"attempts": [CRASHED, {**CRASHED, "generation": 2}]},
        "0 restarts were counted, and 1 attempts ended with one: generations [2]",
    ),
    "time that is given back": (
        {"goodput": {"seconds": {"training": 9.0}}},
        "10.000 seconds of the ledger became 9.000",
    ),
    "a step in no world": (
        {"lineage": [{"generation": 1, "first": 1, "last": 4}, {"generation": 2, "first": 6}]},
        "generation 2 begins at step 6, and the one before it ends at 4",
    ),
    "a step in two worlds": (
        {"lineage": [{"generation": 1, "first": 1}, {"generation": 2, "first": 1}]},
        "generation 1 is open, and a later one has begun",
    ),
}


@pytest.mark.parametrize(("changes", "want"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_status_is_noticed(changes: dict[str, Any], want: str) -> None:
    assert list(find_problems(make_status(), make_status(**changes))) == [want]


def test_a_good_status_is_not() -> None:
    checker = InvariantChecker()
    checker.record_status(TrainingJobStatus(), make_status())
    checker.record_status(make_status(), make_status(attempts=[]))

    assert checker.problems == []
    assert sorted(checker.attempts) == [1, 2]


def test_witness_records_the_progress_of_hosts() -> None:
    checker = InvariantChecker()
    checker.record_report(make_report(generation=2, restored=3, progress=Progress(step=9), committed=6))
    checker.record_report(make_report(generation=3, restored=6, progress=Progress(step=6)))

    assert (checker.highest, checker.committed, checker.generation) == (9, 6, 2)


def lines(*steps: tuple[int, int], **changes: Any) -> list[dict[str, Any]]:
    """Return metrics lines of generations and steps, of two rows a step."""
    return [
        {
            "generation": g,
            "step": s,
            "time": 100.0 + s,
            "loss": 2.0 / s,
            "first_slot": 2 * s - 2,
            "last_slot": 2 * s - 1,
        }
        | changes
        for g, s in steps
    ]


REFERENCE = {step: 2.0 / step for step in range(1, 7)}
WHOLE = lines((1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 5), (2, 6))
DONE = make_status(phase="Succeeded")
RESULTS: dict[str, tuple[TrainingJobStatus, list[dict[str, Any]], tuple[float, float], list[str]]] = {
    "as if nothing had happened": (DONE, WHOLE, (10.01, 10.01), []),
    "not done": (make_status(), WHOLE, (10.0, 10.0), ["the job is Running"]),
    "a step is missing": (
        DONE,
        [line for line in WHOLE if line["step"] != 3],
        (10.0, 10.0),
        [
            (
                "1 steps are not in the committed history, the first of them [3]; generations [] have lines of them, "
                "and the lineage is 1 from 1 (durable), 2 from 5 (durable)"
            )
        ],
    ),
    "a step was trained twice": (
        DONE,
        [*WHOLE, WHOLE[2]],
        (10.0, 10.0),
        [f"step 3 was trained twice in the committed history: {WHOLE[2]}"],
    ),
    "another loss": (
        DONE,
        [*WHOLE[:-1], *lines((2, 6), loss=0.5)],
        (10.0, 10.0),
        ["the loss of step 6 differs by 0.17 from that of an undisturbed job"],
    ),
    "other rows": (
        DONE,
        [*WHOLE[:-1], *lines((2, 6), first_slot=7)],
        (10.0, 10.0),
        ["step 6 has slots 7 to 11, and its first one is 10"],
    ),
    "more rows": (
        DONE,
        [*WHOLE[:-1], *lines((2, 6), last_slot=12)],
        (10.0, 10.0),
        ["step 6 has slots 10 to 12, and its first one is 10"],
    ),
    "time that is not accounted for": (DONE, WHOLE, (12.0, 12.0), ["the ledger has 10.00 seconds of 12.00 to 12.00"]),
    "time that did not pass": (DONE, WHOLE, (8.0, 9.0), ["the ledger has 10.00 seconds of 8.00 to 9.00"]),
    "a clock was ahead for a while, and nobody looked": (DONE, WHOLE, (10.0, 3600.0), []),
}


@pytest.mark.parametrize(("status", "written", "wall", "want"), RESULTS.values(), ids=RESULTS.keys())
def test_a_result_is_judged(
    status: TrainingJobStatus, written: list[dict[str, Any]], wall: tuple[float, float], want: list[str]
) -> None:
    assert list(check_result(status, written, REFERENCE, 6, wall)) == want


OUTAGES: dict[str, tuple[tuple[float, float], bool]] = {
    "between its neighbours": ((102.5, 103.0), True),
    "over before the step before it": ((90.0, 101.9), False),
    "begun after the step after it": ((104.1, 110.0), False),
}


@pytest.mark.parametrize(("outage", "may_lack"), OUTAGES.values(), ids=OUTAGES.keys())
def test_a_step_may_lack_its_line_only_where_nothing_could_be_written(
    outage: tuple[float, float], may_lack: bool
) -> None:
    written = [line for line in WHOLE if line["step"] != 3]

    assert (list(check_result(DONE, written, REFERENCE, 6, (10.0, 10.0), [outage])) == []) == may_lack


UNTOLD: dict[str, tuple[str, int, bool]] = {
    "the last step that others kept in memory": ("ram", 4, True),
    "the step before it": ("ram", 3, True),
    "no earlier one": ("ram", 2, False),
    "none that was saved": ("durable", 4, False),
}


@pytest.mark.parametrize(("tier", "step", "may_lack"), UNTOLD.values(), ids=UNTOLD.keys())
def test_a_step_may_lack_its_line_where_process_0_died_with_it(tier: str, step: int, may_lack: bool) -> None:
    first, second = DONE.lineage
    done = DONE.model_copy(update={"lineage": (first, second.model_copy(update={"tier": tier}))})
    written = [line for line in WHOLE if line["step"] != step]

    assert (list(check_result(done, written, REFERENCE, 6, (10.0, 10.0))) == []) == may_lack


def test_a_job_that_wrote_nothing_is_noticed() -> None:
    assert list(check_result(DONE, [], REFERENCE, 6, (10.0, 10.0))) == [
        (
            "6 steps are not in the committed history, the first of them [1, 2, 3, 4, 5]; generations [] have lines of "
            "them, and the lineage is 1 from 1 (durable), 2 from 5 (durable)"
        )
    ]


def test_world_that_trains_beside_a_later_one_is_detected() -> None:
    assert list(find_split_brain(lines((1, 1), (2, 1), (1, 2), (2, 2)))) == []
    assert list(find_split_brain(lines((1, 1), (2, 1), (1, 2), (1, 3)))) == [
        "generation 1 made 2 steps after a later one had begun"
    ]


def test_bursts_hold_at_most_one_fault_that_is_held_against_the_program() -> None:
    random = Random(3)  # noqa: S311
    bursts = [[name for name, _ in draw_burst(random, is_turned=number % 2 == 0)] for number in range(400)]

    assert {len(burst) for burst in bursts} == set(range(1, MAX_BURST_FAULTS + 1))
    assert all(sum(name in COUNTED_FAULTS for name in burst) <= 1 for burst in bursts)
    assert {name for burst in bursts for name in burst} == {*UNCOUNTED_FAULTS, *COUNTED_FAULTS, CLOCK_FAULT}
    assert not any(CLOCK_FAULT in burst for burst in bursts[1::2])


def test_recoveries_are_grouped_by_the_end_of_the_previous_world() -> None:
    found = list_recoveries(make_status().attempts)

    assert {reason: [one.generation for one in attempts] for reason, attempts in found.items()} == {"Crash": [2]}


def test_an_error_that_an_operator_logs_is_noticed_with_its_cause() -> None:
    log = Log("scheduler")
    with capture_errors() as errors:
        log.warning("a warning is none")
        try:
            raise KeyError("uid")
        except KeyError:
            log.exception("reconcile failed", job="demo")
    log.error("what comes later is not of this job")

    (line,) = errors
    assert "ERROR   scheduler: reconcile failed job=demo" in line
    assert line.endswith("KeyError: 'uid'")
