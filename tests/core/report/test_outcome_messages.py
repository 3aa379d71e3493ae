"""Skipped updates: from which number they are reported, where and how often. The next step after a failed job."""

from typing import Any

import pytest

from tests.support.builders import NOW, make_plan
from tests.support.scenes import Scene, fail, trained
from trainingjob_api.protocol import Progress
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.conditions import (
    MAX_MESSAGE_LENGTH,
    derive_conditions,
    failure_cause,
    merge_conditions,
)
from trainingjob_operator.core.report.outcome_messages import SKIP_WARNING_THRESHOLD
from trainingjob_operator.core.report.situation import Situation, Stage

WORDS = (
    "10 of the newest 100 updates up to step 40 trained nothing: the loss was not finite, a spike, or independent of "
    "the parameters, or no token of the batch had a weight in it. Check the data of those steps in metrics.jsonl, the "
    "loss and its weights, or lower `spec.optimizer.learningRate`"
)


def skip(scene: Scene, lately: int) -> Scene:
    return scene.hear_slice(0, 1, progress=Progress(step=40, loss=2.5, skipped=50, skipped_lately=lately))


def degraded(scene: Scene) -> tuple[str, str, str]:
    one = next(one for one in scene.status.conditions if one.type == "Degraded")
    return one.status, one.reason, one.message


def messages_of(scene: Scene) -> list[tuple[bool, str]]:
    return [(one.is_warning, one.message) for one in scene.happenings() if one.reason == Reason.UPDATES_SKIPPED]


def test_many_skipped_updates_are_one_event_and_a_condition() -> None:
    scene = skip(trained(), SKIP_WARNING_THRESHOLD)
    assert messages_of(scene) == [(True, WORDS)]
    scene.step(1.0)
    assert degraded(scene) == ("True", Reason.UPDATES_SKIPPED, WORDS)
    assert (scene.status.phase, scene.status.display.reason) == ("Degraded", Reason.UPDATES_SKIPPED)
    assert messages_of(scene) == []

    skip(scene, SKIP_WARNING_THRESHOLD - 1).step(1.0)

    assert degraded(scene)[0] == "False"
    assert scene.status.phase == "Running"


def test_few_are_what_a_job_may_have() -> None:
    scene = skip(trained(), SKIP_WARNING_THRESHOLD - 1)

    assert messages_of(scene) == []
    scene.step(1.0)
    assert degraded(scene)[0] == "False"


URI = "the same `spec.checkpoint.uri` (/shared/runs/demo)"
AGAIN = "correct the cause and start the job again. On a cluster, delete this job and create it with"
TAKEOVER = "`spec.checkpoint.takeover: true`"
LOCAL = "A local run resumes by the same `trainingjob run` command."
NEXT_STARTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "before the first save": (
        {},
        {},
        f"To train again, {AGAIN} {URI} and {TAKEOVER} if this job owns the folder, or with another folder. {LOCAL}",
    ),
    "after a save": (
        {},
        {"committed": 1200},
        f"To resume from step 1,200, {AGAIN} {URI} and {TAKEOVER}. {LOCAL}",
    ),
    "of a program, whose jobs must not take a folder over": (
        {"program": {"command": ["python", "train.py"]}},
        {"committed": 1200},
        f"To run the program again, {AGAIN} {URI}: the program resumes from what it has saved there. {LOCAL}",
    ),
}


def failed_message(scene: Scene) -> str:
    scene.step()
    return next(one.message for one in scene.status.conditions if one.type == "Failed" and one.status == "True")


@pytest.mark.parametrize(("spec", "report", "next_start"), NEXT_STARTS.values(), ids=NEXT_STARTS.keys())
def test_failed_job_has_a_next_step(spec: dict[str, Any], report: dict[str, Any], next_start: str) -> None:
    scene = trained(plan=make_plan(**spec)).hear_slice(0, 1, **report)

    message = failed_message(fail(scene, 0, 1, fatal=True, message="the data is empty"))

    assert message == f"host 1 of slice 0 (node node-0-1, exit code 1): the data is empty\n{next_start}"
    assert scene.status.attempts[-1].cause
    assert scene.status.attempts[-1].cause.message == "the data is empty"


def test_long_cause_of_a_failed_job_leaves_its_next_step_whole() -> None:
    """Replicas report the causes of all slices."""
    situation = Situation(Stage.FAILED, Reason.STOPPED, "x" * 2 * MAX_MESSAGE_LENGTH, "", None)

    conditions = merge_conditions((), derive_conditions(situation, "Correct it."), 1, NOW)

    (failed,) = (one for one in conditions if one.type == "Failed")
    assert (len(failed.message), failed.message[-13:]) == (MAX_MESSAGE_LENGTH, "x\nCorrect it.")
    assert set(failure_cause(failed)) == {"x"}
