"""The command that drills a job: its request, the requests that it rejects, and its report of the cost."""

from typing import Any

import pytest

from tests.support.builders import NAME, NOW, UID, job_manifest, make_plan
from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.drill import DrillOptions, list_operations, make_request
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.report import describe_drills, describe_job

ALLOWED = make_plan(elastic={"faultInjection": "allowed"})
RUNNING = TrainingJobStatus(phase="Running")


def test_a_request_names_the_job_and_whom_it_strikes() -> None:
    job = job_manifest(ALLOWED, RUNNING)

    request = make_request(job, DrillOptions(DrillKind.SLOW, 1, None, 40), "abc", NOW)

    assert request == DrillRequest(
        id="abc", job_uid=UID, kind=DrillKind.SLOW, slice=1, seconds=40, requested="2026-11-21T12:00:00.000Z"
    )


REFUSED = {
    "not allowed": (
        make_plan(),
        RUNNING,
        f"{NAME} does not allow drills: `spec.elastic.faultInjection` must be `allowed`.",
    ),
    "not begun": (ALLOWED, TrainingJobStatus(), f"{NAME} is new: a drill needs a job that trains."),
    "over": (ALLOWED, TrainingJobStatus(phase="Succeeded"), f"{NAME} is Succeeded: a drill needs"),
}


@pytest.mark.parametrize(("plan", "status", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_drill_without_effect_is_not_requested(plan: Any, status: TrainingJobStatus, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        make_request(job_manifest(plan, status), DrillOptions(DrillKind.HANG), "abc", NOW)


@pytest.mark.parametrize("annotations", [None, {"mine": "kept"}])
def test_patch_preserves_other_annotations(annotations: dict[str, str] | None) -> None:
    job = job_manifest(ALLOWED, RUNNING)
    if annotations:
        job["metadata"]["annotations"] = annotations
    request = make_request(job, DrillOptions(DrillKind.HANG), "abc", NOW)

    (operation,) = list_operations(job, request)

    value = operation["value"] if annotations else operation["value"][DRILL_ANNOTATION]
    assert DrillRequest.model_validate_json(value) == request
    path = "/metadata/annotations/trainingjob.dev~1drill" if annotations else "/metadata/annotations"
    assert (operation["op"], operation["path"]) == ("add", path)


def test_drills_are_listed_on_separate_lines() -> None:
    common = {"requested": "2026-11-21T12:00:00Z", "slice": 1}
    drills = [
        DrillStatus(
            id="a",
            kind=DrillKind.HANG,
            state="recovered",
            host=0,
            cause="HungHost",
            recovery_seconds=2.5,
            lost_steps=1200,
            tier="ram",
            phases={"detecting": 32.0, "restoring": 0.4},
            **common,
        ),
        DrillStatus(id="b", kind=DrillKind.HANG, state="refused", message="why not", **common),
        DrillStatus(
            id="c", kind=DrillKind.PARTITION, state="withstood", message="the same world still trains", **common
        ),
    ]

    lines = describe_drills(drills)

    assert lines[0] == "drills"
    assert [" ".join(line.split()[2:]) for line in lines[1:]] == [
        "hang slice 1 host 0 HungHost back in 2.5 s from memory, 1,200 steps lost detecting 32 s · restoring 0.4 s",
        "hang slice 1 refused: why not",
        "partition slice 1 the world continued: the same world still trains",
    ]
    assert describe_drills([]) == []
    assert lines == describe_job(NAME, TrainingJobStatus(drills=tuple(drills)), NOW)[1:]
