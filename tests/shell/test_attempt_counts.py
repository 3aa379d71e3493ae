"""Restarts and lost steps are counted once, by the operator that leads while they happen."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.job_metrics import AFTER, BEFORE, START, J, Jobs, labelled, restarted
from tests.support.simulation import Simulation
from trainingjob_operator.shell.attempt_counts import UNLISTED, JobCounts

RESTARTS, LOST_STEPS = "trainingjob_restarts_total", "trainingjob_lost_steps_total"


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def test_each_restart_counts_once(jobs: Jobs) -> None:
    jobs.put(**restarted())
    assert jobs.read(RESTARTS) == {}

    jobs.put(**restarted("NodeLost"))
    jobs.read(RESTARTS)
    three = restarted("NodeLost", "Crash", "NodeLost")
    jobs.put(**three | {"attempts": three["attempts"][1:]})
    jobs.read(RESTARTS)

    assert jobs.read(RESTARTS) == labelled(2, reason="NodeLost", **J) | labelled(1, reason="Crash", **J)


def test_planned_ends_are_no_restarts(jobs: Jobs) -> None:
    causes = ("Completed", "Suspended", "Resized", "Edited", "Draining")
    ended: list[dict[str, Any]] = [
        {"generation": number, "ended": AFTER, "cause": {"reason": reason}} for number, reason in enumerate(causes, 1)
    ]
    jobs.put(attempts=ended)

    assert jobs.read(RESTARTS) == {}


def test_a_replica_that_outlives_others_is_counted_too(jobs: Jobs) -> None:
    first, second = restarted("NodeLost", "Crash")["attempts"][:2]
    lives = {"generation": 1}
    jobs.put(attempts=[lives, second], restarts={"total": 1})
    assert jobs.read(RESTARTS) == labelled(1, reason="Crash", **J)

    jobs.put(attempts=[first, second], restarts={"total": 2})

    assert jobs.read(RESTARTS) == labelled(1, reason="NodeLost", **J) | labelled(1, reason="Crash", **J)


def test_restarts_without_an_attempt_are_counted(jobs: Jobs) -> None:
    """A status of 256 replicas keeps the newest attempts only."""
    jobs.put(**restarted("Crash"))
    jobs.read(RESTARTS)
    jobs.put(**restarted("Crash") | {"restarts": {"total": 4}})
    jobs.read(RESTARTS)

    assert jobs.read(RESTARTS) == labelled(1, reason="Crash", **J) | labelled(3, reason=UNLISTED, **J)


def test_lost_steps_of_each_attempt_count_once(jobs: Jobs) -> None:
    first = {"generation": 1, "lostSteps": 3}
    jobs.put(attempts=[first])
    assert jobs.read(LOST_STEPS) == labelled(3, **J)

    jobs.put(attempts=[first, {"generation": 2}])
    jobs.read(LOST_STEPS)
    jobs.put(attempts=[first, {"generation": 2, "lostSteps": 5}])

    assert jobs.read(LOST_STEPS) == labelled(8, **J)


def test_what_an_earlier_process_has_counted_is_left_out(jobs: Jobs) -> None:
    jobs.put(created=BEFORE, **restarted("NodeLost", "Crash"))
    assert jobs.read(RESTARTS) == {}
    assert jobs.read(LOST_STEPS) == labelled(0, **J)

    after = restarted("NodeLost", "Crash", "Crash")
    after["attempts"][0]["lostSteps"] = 3
    jobs.put(created=BEFORE, **after)

    assert jobs.read(RESTARTS) == labelled(1, reason="Crash", **J)
    assert jobs.read(LOST_STEPS) == labelled(3, **J)


def test_a_standby_that_takes_over_exports_nothing_that_happened_before(jobs: Jobs) -> None:
    """The job is younger than the process of the standby, and has restarted under another leader."""
    jobs.put(created=AFTER, **restarted(*["NodeLost"] * 19))
    jobs.now = START + timedelta(days=1)

    jobs.begin()

    assert jobs.read(RESTARTS) == {}
    jobs.put(created=AFTER, **restarted(*["NodeLost"] * 20))
    assert jobs.read(RESTARTS) == labelled(1, reason="NodeLost", **J)


def test_a_restart_between_the_takeover_and_the_first_scrape_counts(jobs: Jobs) -> None:
    jobs.put(created=BEFORE, **restarted("NodeLost"))
    jobs.begin()
    jobs.put(created=BEFORE, **restarted("NodeLost", "Crash"))

    assert jobs.read(RESTARTS) == labelled(1, reason="Crash", **J)


async def test_counts_agree_with_the_status_through_losses_edits_and_a_suspension() -> None:
    sim = Simulation(total=60)
    counts = JobCounts([sim.job], lambda: START - timedelta(days=1))  # the job has no time of creation

    async def run(seconds: float, until: str = "") -> dict[str, int]:
        await sim.run(seconds, until=until)
        ((_, found),) = counts.update([sim.job])
        return found.restarts

    await sim.run_until_step(10)
    assert sim.crash_child("node-1-0", "ValueError: number 1")
    await run(15)
    sim.edit(training={**sim.job["spec"]["training"], "steps": 61})
    await run(15)
    sim.edit(suspend=True)
    await run(40, until="Suspended")
    sim.edit(suspend=False)
    found = await run(200, until="Succeeded")

    causes = [attempt.cause.reason for attempt in sim.status.attempts if attempt.cause]
    assert causes == ["Crash", "Edited", "Suspended", "Completed"]
    assert found == {"Crash": 1}
    assert sim.status.restarts.total == 1


async def test_the_crash_that_fails_a_job_is_no_restart() -> None:
    sim = Simulation({"elastic": {"maxRestarts": 0}}, total=60)
    counts = JobCounts([sim.job], lambda: START - timedelta(days=1))
    await sim.run_until_step(10)
    assert sim.crash_child("node-1-0", "ValueError: number 1")

    await sim.run(30, until="Failed")

    ((_, found),) = counts.update([sim.job])
    assert sim.status.phase == "Failed"
    assert (found.restarts, sim.status.restarts.total) == ({}, 0)
