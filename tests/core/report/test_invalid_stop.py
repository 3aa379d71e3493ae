"""End of the worlds of a job without a plan: all of them must have ended, by the rules of every world."""

from dataclasses import replace

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, fail, lose_node
from trainingjob_api.protocol import Directive, Phase
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.report.invalid_stop import (
    HEARTBEAT_TIMEOUT_SECONDS,
    describe_stop,
    find_stop,
    stopped_status,
)
from trainingjob_operator.core.report.job_events import JobDirective


def trained() -> Scene:
    return Scene(plan=make_plan(1, 2)).form(0, 1)


def find(scene: Scene, directive: JobDirective | None = None) -> WorldEnd | None:
    seen = scene.see()
    return find_stop(directive or JobDirective(Directive.TRAIN, seen.world), seen.pods, scene.heartbeats())


def test_a_world_whose_hosts_train_or_leave_has_not_stopped() -> None:
    scene = trained()
    assert find(scene) is None
    scene.hear_slice(0, phase=Phase.LEFT)
    scene.hear_slice(1, phase=Phase.SAVING)
    assert find(scene) is None, "they save"
    assert find(scene, JobDirective(Directive.WAIT)) is None, "there is no world"


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase.LEFT, "all hosts saved and left their world"),
        (Phase.DONE, "all steps of the last valid spec are trained"),
    ],
)
def test_a_world_that_all_hosts_left_has_stopped(phase: Phase, message: str) -> None:
    scene = trained()
    scene.hear_slice(0, 1, phase=phase)

    end = find(scene)
    assert end
    assert (end.cause.reason, end.cause.message, end.is_planned) == ("InvalidSpec", message, True)


def test_a_failed_host_ends_a_world_with_the_cause() -> None:
    end = find(fail(trained(), 0, 0, message="an exception"))
    assert end
    assert not end.is_planned
    assert "an exception" in end.cause.message


def test_a_host_that_is_silent_is_lost_only_with_its_node() -> None:
    scene = trained()
    scene.silence(1, HEARTBEAT_TIMEOUT_SECONDS + 1)
    assert find(scene) is None
    assert find(lose_node(scene, 1, 0))


def test_a_job_stops_with_its_last_replica() -> None:
    scene = fail(trained(), 0, 0)
    failed = JobDirective(Directive.TRAIN, scene.see().world)
    alive = JobDirective(Directive.TRAIN, trained().see().world)
    assert alive.world
    alive = replace(alive, world=alive.world.model_copy(update={"generation": 9}))

    assert find(scene, replace(failed, replicas=(failed, alive))) is None
    assert find(scene, replace(failed, replicas=(failed, failed)))


def test_the_status_shows_that_nothing_trains() -> None:
    scene = fail(trained(), 0, 0, message="an exception")
    end = find(scene)
    assert end

    status = stopped_status(scene.status, end, 7, scene.now)

    assert all(attempt.ended for attempt in status.attempts)
    assert (status.phase, status.goodput.current) == ("Invalid", "down")
    assert status.completion_time is None
    running, degraded = (item for item in status.conditions if item.type in ("Running", "Degraded"))
    assert (running.status, running.reason, running.observed_generation) == ("False", "InvalidSpec", 7)
    assert running.message == describe_stop(end)
    assert running.message.endswith("; no world is started until the spec is valid")
    assert degraded.status == "False"
    assert status.restarts == scene.status.restarts
