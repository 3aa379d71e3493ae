"""Neighbouring versions interoperate: unknown fields are ignored, except where that is unsafe."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.support.builders import make_report
from trainingjob_api.drill import DrillRequest
from trainingjob_api.live import LiveFields
from trainingjob_api.protocol import Answer, Directive, HostReport
from trainingjob_api.schema import status_schema
from trainingjob_api.spec.checkpoint import Keep, KeepStage
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import Layout, Span, World
from trainingjob_operator.core.stored_status import read_status

WORLD: dict[str, Any] = {
    "generation": 3,
    "jobUid": "u",
    "coordinator": "10.0.0.1:5000",
    "members": [{"process": 0, "slice": 0, "host": 0, "pod": "p", "podUid": "q", "address": "a", "newer": 1}],
    "lineage": [{"generation": 1, "first": 1, "last": 10, "newer": 1}],
    "newer": 1,
}
MESSAGES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "a report": (
        HostReport,
        {**make_report(progress={"step": 1, "newer": 1}).model_dump(mode="json", by_alias=True), "newer": 1},
    ),
    "an answer": (Answer, {"directive": Directive.TRAIN, "world": WORLD, "newer": 1}),
    "a world": (World, WORLD),
}
LAYOUT: dict[str, Any] = {
    "numSlices": 1,
    "hostsPerSlice": 1,
    "devicesPerHost": 1,
    "ici": {},
    "dcn": {},
    "rowsPerShard": 1,
    "accumulation": 1,
    "paddingRows": 0,
}
UNSAFE: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "a layout, by which programs are made": (Layout, LAYOUT),
    "values of the spec": (LiveFields, {"steps": 1, "save": {}, "keep": {}}),
}


@pytest.mark.parametrize(("model", "message"), MESSAGES.values(), ids=MESSAGES.keys())
def test_fields_of_a_newer_version_are_ignored(model: type[BaseModel], message: dict[str, Any]) -> None:
    assert "newer" not in model.model_validate(message).model_dump_json()


@pytest.mark.parametrize(("model", "message"), UNSAFE.values(), ids=UNSAFE.keys())
def test_unsafe_models_reject_unknown_fields(model: type[BaseModel], message: dict[str, Any]) -> None:
    model.model_validate(message)
    with pytest.raises(ValidationError):
        model.model_validate({**message, "newer": 1})


def test_previous_operator_reads_a_newer_status() -> None:
    lineage = [{"generation": 1, "first": 1, "newer": 1}]

    status = read_status({"status": {"lineage": lineage, "restarts": {"total": 2, "newer": 1}, "newer": 1}})

    assert status == TrainingJobStatus(lineage=(Span(generation=1, first=1),), restarts=status.restarts)
    assert status.restarts.total == 2


FORMER_REPORT = {
    "unheard": [{"generation": 1, "first": 1, "last": 9}],
    "inherited": "step 5 of /shared/base",
    "drilled": "one",
    "unmade": "nothing is saved",
}
REPORT: dict[str, Any] = {
    "missing_lineage": (Span(generation=1, first=1, last=9),),
    "initialized_from": "step 5 of /shared/base",
    "drill_id": "one",
    "drill_error": "nothing is saved",
}


def test_report_of_an_older_agent_is_parsed() -> None:
    names = HostReport.former_names()
    plain = make_report().model_dump(mode="json", by_alias=True)
    former = {key: value for key, value in plain.items() if key not in {*names, *names.values()}} | FORMER_REPORT

    assert HostReport.model_validate(former) == make_report(**REPORT)
    assert HostReport.model_validate_json(json.dumps(former)) == make_report(**REPORT)


def test_report_keeps_the_fields_of_an_older_operator() -> None:
    written = json.loads(make_report(**REPORT).model_dump_json(by_alias=True, exclude_none=True))

    assert {name: written[name] for name in ("inherited", "drilled", "unmade")} == {
        name: FORMER_REPORT[name] for name in ("inherited", "drilled", "unmade")
    }
    assert written["unheard"] == written["missingLineage"]
    assert HostReport.model_validate(written) == make_report(**REPORT)


def test_answer_is_parsed_by_older_and_newer_agents() -> None:
    answer = Answer(directive=Directive.WAIT, collect_diagnostics=True)
    written = json.loads(answer.model_dump_json(by_alias=True))

    assert (written["collectDiagnostics"], written["examine"]) == (True, True)
    assert Answer.model_validate(written) == answer
    assert Answer.model_validate({"directive": "wait", "examine": True}) == answer


def test_the_retention_of_an_older_operator_is_understood() -> None:
    live = {"steps": 9, "save": {}, "keep": {"last": 2, "everySteps": 60, "best": None}}
    world = World.model_validate({**WORLD, "live": live})

    assert world.live
    assert world.live.keep == Keep(last=2, stages=(KeepStage(every=60),))
    unset = LiveFields.model_validate({**live, "keep": {"last": 2, "everySteps": None}})
    assert unset.keep == Keep(last=2)


def test_an_older_agent_understands_a_retention_without_stages() -> None:
    world = World.model_validate({**WORLD, "live": {"steps": 9, "save": {}, "keep": {"last": 2}}})

    assert json.loads(world.model_dump_json(by_alias=True))["live"]["keep"] == {"last": 2, "best": None}


DRILL: dict[str, Any] = {"id": "one", "kind": "hang", "state": "over", "requested": "2026-11-21T12:00:00Z"}
REQUEST: dict[str, Any] = {"id": "one", "jobUid": "u", "kind": "hang", "requested": "2026-11-21T12:00:00Z"}


@pytest.mark.parametrize(("model", "now"), [(DrillStatus, DRILL), (DrillRequest, REQUEST)], ids=["status", "request"])
def test_a_drill_has_the_time_of_its_request_under_both_names(model: type[BaseModel], now: dict[str, Any]) -> None:
    former = {name: value for name, value in now.items() if name != "requested"} | {"asked": now["requested"]}
    drill = model.model_validate(former)
    written = json.loads(drill.model_dump_json(by_alias=True, exclude_none=True))

    assert drill == model.model_validate(now) == model.model_validate(written)
    assert written["asked"] == written["requested"] == now["requested"]


def test_the_api_server_requires_neither_name_of_a_renamed_field() -> None:
    drill = status_schema()["properties"]["drills"]["items"]

    assert drill["properties"]["asked"]["format"] == drill["properties"]["requested"]["format"] == "date-time"
    assert {"id", "kind", "state"} == set(drill["required"])


@pytest.mark.parametrize(("former", "want"), [("ComesLate", "SlowStep"), ("StandsStill", "CpuStarved")])
def test_straggler_reason_of_an_older_operator_is_translated(former: str, want: str) -> None:
    stored = {"slice": 0, "host": 1, "ratio": 0.3, "since": "2026-11-21T12:00:00Z", "reason": former}

    status = read_status({"status": {"straggler": stored}})

    assert status.straggler
    assert status.straggler.reason == want
    assert status.straggler.model_dump()["reason"] == want
