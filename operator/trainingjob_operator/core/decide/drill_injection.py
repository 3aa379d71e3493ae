"""Drill injection: how a recorded drill is performed, and how the end of its world is counted.

Agents inject the fault, the operator deletes pods, or the operator stops serving the job for a while. An end that a
drill caused counts neither as a failure of the program nor as a fault of a node.
"""

from dataclasses import dataclass, replace

from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import MAX_MESSAGE
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import World
from trainingjob_operator.core.decide.child_maintenance import DeletePod
from trainingjob_operator.core.decide.drills import OPEN_STATES
from trainingjob_operator.core.diagnose.health import Failed, Health
from trainingjob_operator.core.observe.observed import Observed


@dataclass(frozen=True)
class InjectionOrder:
    """A drill, and the pods whose agents must inject it."""

    drill: Drill
    pods: frozenset[str]


def discount_drill_failure(status: TrainingJobStatus, health: Health | None) -> Health | None:
    """Return the health of a world. A failure during a drill does not count against the program or a node."""
    if not isinstance(health, Failed) or not is_drill_in_progress(status):
        return health
    return Failed(replace(health.end, is_counted=False, is_fatal=False, is_single_node=False))


def is_drill_in_progress(status: TrainingJobStatus) -> bool:
    """Return whether a drill is in progress in the newest world."""
    world = status.world
    return world is not None and any(
        drill.state in OPEN_STATES and drill.generation == world.generation for drill in status.drills
    )


def find_injection_order(status: TrainingJobStatus, world: World) -> InjectionOrder | None:  # None: no drill to inject
    """Return the drill that agents of a world must inject, according to the written status."""
    for drill in status.drills:
        if drill.state == "ordered" and drill.generation == world.generation:
            pods = {
                member.pod_uid for member in world.members if (member.slice, member.host) == (drill.slice, drill.host)
            }
            return InjectionOrder(Drill(id=drill.id, kind=drill.kind, seconds=drill.seconds), frozenset(pods))
    return None


def list_pods_to_delete(seen: Observed, new_status: TrainingJobStatus) -> tuple[DeletePod, ...]:
    """Return the pods to delete for a drill that has just been written."""
    new = _find_new_operator_drill(seen, new_status)
    if new is None or new.kind is DrillKind.OPERATOR_DOWN:
        return ()
    targets = [
        member_view
        for member_view in seen.member_views
        if member_view.member.slice == new.slice and new.host in (None, member_view.member.host)
    ]
    force = new.kind is not DrillKind.PREEMPT
    return tuple(DeletePod(member_view.pod, force=force) for member_view in targets if member_view.pod)


def refuse_drill(seen: Observed, new_status: TrainingJobStatus, error: str) -> TrainingJobStatus:
    """Return the status after the API server refused to delete every pod of a drill: no pod was deleted."""
    new = _find_new_operator_drill(seen, new_status)
    if new is None:
        return new_status
    message = f"the API server rejected the deletion of its pod: {error}"[:MAX_MESSAGE]
    refused = {"state": "refused", "injected": None, "message": message}
    drills = tuple(drill.model_copy(update=refused) if drill.id == new.id else drill for drill in new_status.drills)
    return new_status.model_copy(update={"drills": drills})


def operator_pause_seconds(seen: Observed, new_status: TrainingJobStatus) -> float:
    """Return the seconds that the operator must not serve this job, for a drill that has just been written."""
    new = _find_new_operator_drill(seen, new_status)
    return float(new.seconds) if new and new.kind is DrillKind.OPERATOR_DOWN else 0.0


def _find_new_operator_drill(seen: Observed, new_status: TrainingJobStatus) -> DrillStatus | None:  # None: no new drill
    known = {drill.id for drill in seen.status.drills}
    new = [drill for drill in new_status.drills if drill.id not in known and drill.state == "injected"]
    return new[0] if new else None
