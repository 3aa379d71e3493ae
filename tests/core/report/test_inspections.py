"""Requests for traces and stacks: which of them reach the hosts of a world."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import UID
from tests.support.scenes import trained
from trainingjob_api.inspection import INSPECTION_ANNOTATION, InspectionRequest
from trainingjob_operator.core.report.job_events import make_directive
from trainingjob_operator.core.times import format_time

REQUESTED = format_time(trained().now)


def write_request(**changes: Any) -> str:
    values = {"id": "one", "job_uid": UID, "kind": "trace", "requested": REQUESTED, **changes}
    return InspectionRequest(**values).model_dump_json(by_alias=True)


def find_sent(written: str, seconds: float = 1.0) -> InspectionRequest | None:
    scene = trained()
    scene.annotations = {INSPECTION_ANNOTATION: written}
    scene.now += timedelta(seconds=seconds)
    return make_directive(scene.plan, scene.see(), scene.decide(), scene.status).inspection


def test_a_request_reaches_the_hosts() -> None:
    sent = find_sent(write_request(steps=7, hosts="all"))

    assert sent
    assert (sent.id, sent.kind, sent.steps, sent.hosts) == ("one", "trace", 7, "all")


@pytest.mark.parametrize(
    "written",
    {
        "another job's": write_request(job_uid="other"),
        "without a time": write_request(requested="now"),
        "no request": "trace",
        "of a kind of a later version": write_request().replace('"trace"', '"memory"'),
        "of too many steps": write_request(steps=100).replace("100", "100000"),
        "none": "",
    }.values(),
    ids=lambda written: written[:20],
)
def test_other_annotations_are_ignored(written: str) -> None:
    assert find_sent(written) is None


@pytest.mark.parametrize(("seconds", "is_sent"), [(120, True), (121, False)])
def test_a_stale_request_is_ignored(seconds: float, is_sent: bool) -> None:
    """A host that starts later would repeat it."""
    assert (find_sent(write_request(), seconds) is not None) is is_sent
