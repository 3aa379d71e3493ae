"""Completion of a job without a plan: only hosts that have all trained their last step end it."""

from dataclasses import replace

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene
from trainingjob_api.protocol import Directive, Phase
from trainingjob_operator.core.report.invalid_completion import completed_status, is_complete
from trainingjob_operator.core.report.job_events import JobDirective


def done() -> tuple[Scene, JobDirective]:
    scene = Scene(plan=make_plan(1, 2)).form(0, 1)
    scene.hear_slice(0, phase=Phase.DONE, committed=20)
    scene.hear_slice(1, phase=Phase.DONE, committed=20)
    return scene, JobDirective(Directive.TRAIN, scene.see().world)


def find(scene: Scene, directive: JobDirective | None, generation: int | None = None) -> bool:
    observed = scene.status.observed_generation if generation is None else generation
    return is_complete(scene.status, directive, scene.heartbeats(), observed or 0)


def test_job_is_complete_once_all_hosts_are_done() -> None:
    scene, directive = done()
    assert find(scene, directive)

    status = completed_status(scene.status, 1, scene.now)
    assert (status.phase, status.display.reason, status.goodput.current) == ("Succeeded", "Completed", "")
    assert status.completion_time
    assert all(attempt.ended for attempt in status.attempts)


def test_a_host_that_still_saves_is_waited_for() -> None:
    scene, directive = done()
    scene.hear_slice(1, phase=Phase.SAVING)
    assert not find(scene, directive)
    scene.hear_slice(1, phase=Phase.DONE, generation=0)
    assert not find(scene, directive), "it was done in the world before this one"
    scene.news.clear()
    assert not find(scene, directive)


def test_an_edited_job_and_one_without_a_world_are_not_complete() -> None:
    scene, directive = done()
    assert not find(scene, directive, 2)
    assert not find(scene, None)
    assert not find(scene, JobDirective(Directive.WAIT))


@pytest.mark.parametrize("has_world", [True, False])
def test_all_replicas_must_be_done(has_world: bool) -> None:
    scene, directive = done()
    other = directive if has_world else JobDirective(Directive.WAIT)
    assert find(scene, replace(directive, replicas=(directive, other))) is has_world
