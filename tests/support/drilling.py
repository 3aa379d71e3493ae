"""A job that allows drills, and requests of its owner."""

from typing import Any

from tests.support.builders import UID, make_plan
from tests.support.scenes import Scene, trained
from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_operator.core.times import format_time


def drillable(**elastic: Any) -> Scene:
    return trained(plan=make_plan(elastic={"faultInjection": "allowed", **elastic}))


def ask(scene: Scene, kind: str, number: str = "one", **more: Any) -> Scene:
    """Ask for a drill, now unless said otherwise."""
    written = {"id": number, "job_uid": UID, "kind": kind, "requested": format_time(scene.now), **more}
    scene.annotations = {DRILL_ANNOTATION: DrillRequest(**written).model_dump_json(by_alias=True)}
    return scene


def newest(scene: Scene) -> DrillStatus:
    return scene.status.drills[-1]


def look(scene: Scene, seconds: float = 0.0) -> DrillStatus:
    """Let the operator decide; return the state of the newest drill."""
    scene.step(seconds)
    return newest(scene)
