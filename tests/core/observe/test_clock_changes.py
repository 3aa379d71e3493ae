"""Times of a status after the clock is set: each keeps its age, and nothing else changes."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, fail, lose_node, trained
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.observe.clock_changes import TIME_FIELDS, shift_times
from trainingjob_operator.core.times import parse_time


def lived() -> Scene:
    """Return a job that has failed and lost a node, and waits for it."""
    scene = trained(plan=make_plan(elastic={"policy": "wait"}))
    fail(scene, 1, 1).step(10.0)
    scene.train(step=11, restored=10, committed=11, failure=None).step(10.0)
    lose_node(scene.silence(1), 1, 0).hear_slice(0, still=6.0)
    scene.step(10.0)
    return scene


def list_times(value: Any, path: str = "") -> dict[str, str]:
    """Return the times of a status by their places."""
    if isinstance(value, dict):
        pairs = [(f"{path}.{name}", one) for name, one in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{path}[{number}]", one) for number, one in enumerate(value)]
    else:
        return {path: value} if isinstance(value, str) and parse_time(value) else {}
    return {place: time for name, one in pairs for place, time in list_times(one, name).items()}


@pytest.mark.parametrize("hours", [1, -1])
def test_each_time_moves_with_the_clock_and_back(hours: int) -> None:
    status = lived().status
    before = list_times(status.model_dump())
    assert {"start_time", "since", "until", "started"} <= {place.rpartition(".")[2] for place in before}

    moved = shift_times(status, 3600.0 * hours)

    after = list_times(moved.model_dump())
    assert {place: parse_time(after[place]) for place in after} == {
        place: (time := parse_time(before[place])) and time + timedelta(hours=hours) for place in before
    }
    assert shift_times(moved, -3600.0 * hours) == status


def test_a_clock_that_was_not_set_changes_nothing() -> None:
    status = lived().status

    assert shift_times(status, 0.0) is status


def test_invalid_times_are_kept() -> None:
    status = TrainingJobStatus(start_time="soon")

    assert shift_times(status, 60.0) == status


def test_every_field_with_a_time_is_known() -> None:
    schema = TrainingJobStatus.model_json_schema(by_alias=False)
    models = [schema, *schema["$defs"].values()]
    found = {
        name
        for model in models
        for name, field in model.get("properties", {}).items()
        if "date-time" in str(field.get("format", [one.get("format") for one in field.get("anyOf", [])]))
    }
    assert found - set(DrillStatus.former_names().values()) == TIME_FIELDS
