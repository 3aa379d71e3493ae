"""Drills: when they are injected, into which pod, and at most once each."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import failure, make_plan
from tests.support.drilling import ask, drillable, look, newest
from tests.support.scenes import Scene, delete_all, fail, trained
from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Phase
from trainingjob_api.status.progress_status import RollbackStatus
from trainingjob_operator.core.decide.decisions import Claim, EndWorld
from trainingjob_operator.core.decide.drill_injection import (
    find_injection_order,
    list_pods_to_delete,
    operator_pause_seconds,
    refuse_drill,
)
from trainingjob_operator.core.decide.drills import MAX_DRILLS
from trainingjob_operator.core.report.job_events import make_directive
from trainingjob_operator.core.times import format_time

BEGINNINGS: dict[str, tuple[Callable[[], Scene], tuple[str, int | None, int | None, str]]] = {
    "a host hangs: the last of the last slice": (lambda: ask(drillable(), "hang"), ("ordered", 1, 1, "")),
    "another host": (lambda: ask(drillable(), "slow", slice=0, host=0), ("ordered", 0, 0, "")),
    "a slice is killed by the operator itself": (
        lambda: ask(drillable(), "kill-slice", host=0),
        ("injected", 1, None, ""),
    ),
    "so is a host": (lambda: ask(drillable(), "kill-host"), ("injected", 1, 1, "")),
    "the operator itself is nowhere": (lambda: ask(drillable(), "operator-down"), ("injected", None, None, "")),
    "it is not allowed": (
        lambda: ask(trained(), "hang"),
        ("refused", None, None, "`spec.elastic.faultInjection` is not `allowed`"),
    ),
    "no such slice": (
        lambda: ask(drillable(), "hang", slice=7),
        ("refused", None, None, "slice 7 is not in the world. Slices of the world: 0, 1"),
    ),
    "no such host": (
        lambda: ask(drillable(), "hang", host=2),
        ("refused", None, None, "slice 1 has no host 2. Hosts of a slice: 0 to 1"),
    ),
}


HARMS: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "its update is skipped": ({}, 0, "ordered", ""),
    "the job would fail": (
        {"nonFinite": "stop"},
        0,
        "refused",
        "the drill would fail the job: `spec.protection.nonFinite` is `stop`",
    ),
    "training goes back": ({"nonFinite": "rollback", "maxRollbacks": 2}, 1, "ordered", ""),
    "it went back too often": (
        {"nonFinite": "rollback", "maxRollbacks": 2},
        2,
        "refused",
        "the drill would fail the job: it has used all 2 of `spec.protection.maxRollbacks`",
    ),
}


@pytest.mark.parametrize(("protection", "rollbacks", "state", "words"), HARMS.values(), ids=HARMS.keys())
def test_a_drill_never_fails_the_job(protection: dict[str, Any], rollbacks: int, state: str, words: str) -> None:
    scene = trained(plan=make_plan(elastic={"faultInjection": "allowed"}, protection=protection))
    known = [
        RollbackStatus(lineage=number, generation=number, step=9, parent=8, time="x", reason="NonFinite")
        for number in range(1, rollbacks + 1)
    ]
    scene.status = scene.status.model_copy(update={"rollbacks": tuple(known)})

    one = look(ask(scene, "nan"))

    assert (one.state, one.message) == (state, words)


@pytest.mark.parametrize(("scene", "want"), BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_drill_begins(scene: Callable[[], Scene], want: tuple[str, int | None, int | None, str]) -> None:
    one = look(scene())

    assert (one.state, one.slice, one.host, one.message) == want
    assert (one.id, one.generation) == ("one", None if one.state == "refused" else 1)


NOT_MEANT = {
    "another job's": DrillRequest(id="one", job_uid="other", kind=DrillKind.HANG, requested="now").model_dump_json(
        by_alias=True
    ),
    "no request": "hang",
    "of a kind that is not known here": '{"id": "one", "jobUid": "x", "kind": "flood", "requested": "now"}',
}


@pytest.mark.parametrize("written", NOT_MEANT.values(), ids=NOT_MEANT.keys())
def test_request_for_another_job_is_ignored(written: str) -> None:
    scene = drillable()
    scene.annotations = {DRILL_ANNOTATION: written}

    scene.step()

    assert scene.status.drills == ()


def test_a_drill_waits_for_a_world_that_trains_well_but_not_for_long() -> None:
    scene = ask(drillable().hear(0, 0, phase=Phase.CONNECTING), "hang")
    scene.step(60)
    assert scene.status.drills == ()

    assert look(scene, 61).state == "refused"


@pytest.mark.parametrize(
    "requested", ["2026-11-21T11:57:00Z", "2026-11-21T12:30:00Z", "0001-01-01T00:00:00+14:00", "now", ""]
)
def test_a_request_of_another_time_is_not_meant_any_more(requested: str) -> None:
    scene = ask(drillable(), "kill-slice", requested=requested)

    one = look(scene)

    assert (one.state, one.message) == (
        "refused",
        f"the job did not train normally within 2 minutes of the request at {requested}",
    )
    assert one.requested == format_time(scene.now)  # a text that is no time would have the whole status refused


def test_drills_run_one_at_a_time() -> None:
    scene = ask(drillable(), "hang")
    scene.step()

    assert look(ask(scene, "slow", "two")).message == "another drill is in progress"


def test_host_gets_the_drill_until_it_is_injected_and_only_in_its_world() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    seen = scene.see()
    assert seen.world
    order = find_injection_order(scene.status, seen.world)
    assert order
    assert (order.drill.id, order.drill.kind, order.pods) == ("one", DrillKind.HANG, {"pod-1-1"})
    assert make_directive(scene.plan, seen, scene.decide(), scene.status).injection_order == order

    scene.hear(1, 1, drill_id="one")
    assert look(scene).state == "injected"
    assert find_injection_order(scene.status, seen.world) is None


def test_an_order_ends_with_its_world() -> None:
    scene = ask(drillable(), "hang")
    scene.step()
    fail(scene, 0, 0)
    scene.step()

    one = look(scene)

    assert (one.state, one.message) == ("over", "its world ended before the host injected the drill")


def test_host_reports_why_it_cannot_inject_a_drill() -> None:
    scene = ask(drillable(), "corrupt-checkpoint")
    scene.step()
    scene.hear(1, 1, drill_id="one", drill_error="nothing is saved")

    one = look(scene)

    assert (one.state, one.message) == ("refused", "nothing is saved")


def test_drill_that_fails_after_its_report_is_refused() -> None:
    scene = ask(drillable(), "corrupt-checkpoint")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    assert (look(scene).state, look(scene, 60).state) == ("injected", "injected")

    scene.hear(1, 1, drill_id="one", drill_error="nothing is saved")
    refused = look(scene)

    assert (refused.state, refused.injected, refused.message) == ("refused", None, "nothing is saved")


def test_drill_that_fails_after_it_has_ended_its_world_is_measured() -> None:
    scene = ask(drillable(), "corrupt-checkpoint")
    scene.step()
    scene.hear(1, 1, drill_id="one")
    scene.step()
    fail(scene, 0, 0)
    while scene.status.world is None or scene.status.world.generation == 1:
        scene.step()

    scene.hear(1, 1, drill_id="one", drill_error="nothing is saved")

    assert look(scene).state == "injected"
    scene.train(step=30, restored=10, failure=None)
    assert look(scene).state == "recovered"


def test_recorded_drill_without_injection_is_reported_as_not_injected() -> None:
    scene = ask(drillable(), "kill-host")
    before = scene.see()
    scene.step()
    assert list_pods_to_delete(before, scene.status)  # and the operator ends here
    assert look(scene, 119).state == "injected"

    one = look(scene, 1)

    assert (one.state, one.message) == (
        "over",
        "the operator stopped before it injected the drill, and does not inject it later",
    )
    assert list_pods_to_delete(scene.see(), scene.status) == ()


def test_drill_ends_if_its_host_does_not_inject_it() -> None:
    scene = ask(drillable(), "hang")
    scene.step()

    assert look(scene, 241).message == "the host did not inject the drill"


STRIKES: dict[str, tuple[str, list[tuple[str, bool]], float]] = {
    "a slice": ("kill-slice", [("pod-1-0", True), ("pod-1-1", True)], 0.0),
    "a host": ("kill-host", [("pod-1-1", True)], 0.0),
    "a slice, which may save": ("preempt", [("pod-1-0", False), ("pod-1-1", False)], 0.0),
    "nobody": ("operator-down", [], 30.0),
    "a host by its agent": ("hang", [], 0.0),
}


@pytest.mark.parametrize(("kind", "struck", "pause"), STRIKES.values(), ids=STRIKES.keys())
def test_the_operator_strikes_when_it_is_written_and_only_then(
    kind: str, struck: list[tuple[str, bool]], pause: float
) -> None:
    scene = ask(drillable(), kind)
    before = scene.see()
    assert list_pods_to_delete(before, before.status) == ()
    scene.step()

    assert [(one.pod.uid, one.force) for one in list_pods_to_delete(before, scene.status)] == struck
    assert operator_pause_seconds(before, scene.status) == pause
    assert list_pods_to_delete(scene.see(), scene.status) == ()
    assert operator_pause_seconds(scene.see(), scene.status) == 0.0


def test_drill_whose_pod_is_not_deleted_is_rejected() -> None:
    scene = ask(drillable(), "hang", "first", slice=9)
    look(scene)
    before_second = ask(scene, "kill-host", "second").see()
    scene.step()

    first, second = refuse_drill(before_second, scene.status, "pods stay").drills

    assert first == scene.status.drills[0]
    assert (second.state, second.injected) == ("refused", None)
    assert second.message == "the API server rejected the deletion of its pod: pods stay"
    assert refuse_drill(scene.see(), scene.status, "pods stay") == scene.status


def test_the_last_drills_are_kept() -> None:
    scene = drillable()
    for number in range(MAX_DRILLS + 2):
        look(ask(scene, "hang", f"drill-{number}", slice=9))

    assert [one.id for one in scene.status.drills] == [f"drill-{number}" for number in range(2, MAX_DRILLS + 2)]


def test_each_change_of_a_drill_is_an_event() -> None:
    scene = ask(drillable(), "hang")
    assert [(one.reason, one.message) for one in scene.happenings()] == [
        ("Drill", "drill hang of host 1 of slice 1: requested from the host")
    ]
    scene.step()
    assert scene.happenings() == ()
    scene.hear(1, 1, drill_id="one")
    assert [one.is_warning for one in scene.happenings()] == [True]


EVENTS = ("look", "obey", "crash", "train", "lose", "ask again", "ask anew", "wait")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(DrillKind), st.lists(st.sampled_from(EVENTS), max_size=12))
def test_no_drill_is_injected_twice(kind: DrillKind, events: list[str]) -> None:
    """Count the injections of each request over any sequence of events: deleted pods, pauses and drilled hosts."""
    scene = ask(drillable(), kind)
    deeds: dict[str, set[object]] = {}
    number = "one"
    for turn, event in enumerate(("look", *events)):
        number = f"drill-{turn}" if event == "ask anew" else number
        happen(scene, event, kind, number, turn)
        before = scene.see()
        decision = scene.step(100.0 if event == "wait" else 1.0)
        if list_pods_to_delete(before, scene.status) or operator_pause_seconds(before, scene.status):
            deeds.setdefault(newest(scene).id, set()).add(turn)
        world = decision.world if isinstance(decision, Claim) else before.world
        if world and not isinstance(decision, EndWorld) and (order := find_injection_order(scene.status, world)):
            deeds.setdefault(order.drill.id, set()).add(f"generation {world.generation}")
    assert all(len(made) == 1 for made in deeds.values()), deeds


def happen(scene: Scene, event: str, kind: DrillKind, number: str, turn: int) -> None:
    """Apply a random event to a job with drills."""
    match event:
        case "obey" if (1, 1) in scene.pods:
            scene.hear(1, 1, drill_id=number)
        case "crash":
            scene.hear(0, 0, phase=Phase.FAILED, failure=failure(message=f"error {turn}"), still=1.0)
        case "train" if (1, 1) in scene.pods and scene.see().world:
            scene.train(step=30, restored=10, failure=None)
        case "lose":
            delete_all(scene, 1)
        case "ask again" | "ask anew":
            ask(scene, kind, number)
