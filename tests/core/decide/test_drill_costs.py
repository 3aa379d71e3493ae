"""Costs of drills: lost time, the worlds that survive them, and no blame for hosts or nodes."""

from tests.support.drilling import ask, drillable, look
from tests.support.scenes import claim, fail
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.decide.decisions import Claim


def test_cost_of_a_drill_is_measured_when_the_next_world_trains() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step(2)
    fail(scene.hear_slice(0, 1, still=3.0), 1, 1, still=3.0)
    decision = scene.step(4)
    assert isinstance(decision, Claim)
    scene.train(step=8, restored=8, tier="ram", phase=Phase.RESTORING, failure=None)
    assert look(scene, 1).state == "injected"
    scene.train(step=9, restored=8, tier="ram", failure=None)

    one = look(scene, 1)

    assert (one.state, one.cause, one.message) == ("recovered", "Crash", "ValueError: bad")
    assert (one.recovery_seconds, one.lost_steps, one.tier) == (5.0, 2, "ram")
    assert one.phases["detecting"] == 3.0
    assert scene.status.restarts.counted == 0
    assert scene.status.restarts.total == 1


def test_worlds_that_die_on_the_way_back_are_part_of_the_cost() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step(2)
    fail(scene, 1, 1)
    scene.step(4)
    scene.train(step=8, restored=8, phase=Phase.RESTORING, failure=None)
    fail(scene, 0, 0, message="another")
    scene.step(5)
    scene.train(step=7, restored=6, failure=None)

    one = look(scene, 1)

    assert (one.state, one.cause, one.recovery_seconds, one.lost_steps) == ("recovered", "Crash", 6.1, 4)
    assert [attempt.recovery_seconds for attempt in scene.status.attempts] == [None, None, 1.1]


def test_a_job_that_is_suspended_on_the_way_back_is_not_measured() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    fail(scene, 1, 1)
    scene.step()
    attempts = scene.status.attempts
    suspended = attempts[0].model_copy(update={"cause": Cause(reason="Suspended")})
    scene.status = scene.status.model_copy(update={"attempts": (suspended, *attempts[1:])})
    scene.train(step=9, restored=8, failure=None)

    one = look(scene)

    assert (one.state, one.message) == ("over", "the job was suspended before it recovered")


def test_requested_failure_never_fails_the_job() -> None:
    scene = ask(drillable(maxRestarts=0), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()

    fail(scene, 1, 1, fatal=True)

    end = claim(scene).end
    assert end
    assert (end.is_counted, end.is_fatal, end.is_single_node) == (False, False, False)


def test_an_end_after_the_drill_counts_as_ever() -> None:
    scene = ask(drillable(), "partition")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    assert look(scene, 40).state == "withstood"

    fail(scene, 1, 1)

    end = claim(scene).end
    assert end
    assert end.is_counted


def test_a_host_that_was_slowed_down_is_named_or_not() -> None:
    scene = ask(drillable(), "slow")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    for number, host in ((0, 0), (0, 1), (1, 0), (1, 1)):
        waits = 0.01 if (number, host) == (1, 1) else 0.4
        reported = Progress(step=60, step_seconds=0.5, typical_seconds=0.5, wait_seconds=waits)
        scene.hear(number, host, progress=reported)
    scene.step(12)

    one = look(scene, 30)

    assert (one.state, one.message) == ("withstood", "the host was reported as a straggler after 42 s")


def test_nan_drill_ends_when_metrics_of_its_step_are_reported() -> None:
    scene = ask(drillable(), "nan")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    for number, host in ((0, 0), (0, 1), (1, 0), (1, 1)):
        reported = Progress(step=60, step_seconds=0.5, typical_seconds=0.5, skipped=1)
        scene.hear(number, host, progress=reported, drill_id="one")
    assert look(scene, 4.9).state == "injected"

    one = look(scene, 0.1)

    assert (one.state, one.message) == (
        "withstood",
        "the same world still trains after 5.0 s; 1 update skipped so far",
    )


def test_a_drill_of_which_nothing_comes_is_over() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()

    assert look(scene, 1801).state == "over"


def test_drill_ends_if_its_world_is_not_in_the_status() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    scene.status = scene.status.model_copy(update={"world": None, "attempts": ()})

    assert look(scene).message == "the job made no step after the drill"
