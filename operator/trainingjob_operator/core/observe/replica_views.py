"""Replicas: the view of one slice of a job in which each slice trains in a separate world.

The rules of health, restarts and formation read one world. A view is the state of the job with one slice alone: its
hosts, its world, its attempts and its restarts. Rollbacks, checkpoints and faults of nodes are those of the whole job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainingjob_api.status.training_job_status import Display, TrainingJobStatus
from trainingjob_api.status.world_status import Attempt, ReplicaStatus, Restarts
from trainingjob_api.world import World
from trainingjob_operator.core.observe import members
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import attach_program_config
from trainingjob_operator.core.reasons import Reason

DRAIN_REASONS = frozenset(
    {Reason.DRAINING, Reason.DRAINING_LAST_HOSTS, Reason.EDITED, Reason.GROWING, Reason.SUSPENDING}
)
"""Reasons for which a world drains."""


def split_replicas(plan: Plan, seen: Observed) -> Observed:
    """Return the state of a job whose slices are replicas, with a view of each one and their worlds merged into one.

    Other jobs have one world, and their state stays as it is. Replicas share one history of saved steps, so that no
    span of a generation makes another one void.
    """
    if not plan.has_replicas:
        return seen
    views = tuple(_view_slice(plan.of_one_slice, seen, number) for number in range(len(seen.slices)))
    nodes = frozenset(member_view.member.node for view in views for member_view in view.member_views)
    views = tuple(replace(view, job_nodes=nodes) for view in views)
    return replace(
        seen,
        replicas=views,
        world=merge_worlds([view.world for view in views]),
        member_views=tuple(member for view in views for member in view.member_views),
        lineage=seen.status.lineage,
    )


def merge_worlds(worlds: Sequence[World | None]) -> World | None:  # None: no slice has a world
    """Return the newest of some worlds with the members of all of them."""
    running = [world for world in worlds if world]
    if not running:
        return None
    newest = max(running, key=lambda world: world.generation)
    return newest.model_copy(update={"members": tuple(member for world in running for member in world.members)})


def rebuild_worlds(
    status: TrainingJobStatus, job_uid: str, pods: Iterable[Pod], latest_reports: Mapping[str, LatestReport]
) -> tuple[World, ...]:
    """Return the committed worlds from the status, without their program config: one, or that of each replica."""
    views = [_view_status(status, replica.slice) for replica in status.replicas] or [status]
    worlds = [members.rebuild_world(view, job_uid, pods, latest_reports) for view in views]
    return tuple(world for world in worlds if world)


def find_replica(status: TrainingJobStatus, slice_number: int) -> ReplicaStatus | None:  # None: it never had a world
    """Return the record of a slice."""
    return next((replica for replica in status.replicas if replica.slice == slice_number), None)


def list_live_slices(seen: Observed) -> tuple[int, ...]:
    """Return the slices that the others wait for at the end of a round: all hosts of their worlds train it."""
    return tuple(
        view.slices[0].number
        for view in seen.replicas
        if view.world
        and all(member_view.report and member_view.report.is_in_round for member_view in view.member_views)
    )


def _view_slice(plan: Plan, seen: Observed, number: int) -> Observed:
    status = _view_status(seen.status, number)
    world = members.rebuild_world(status, seen.uid, seen.pods, seen.heartbeats.latest_reports)
    if world is not None:
        world = attach_program_config(world, plan, plan.find_layout(1))
    return replace(
        seen,
        status=status,
        slices=(seen.slices[number],),
        jobs=tuple(job for job in seen.jobs if job.slice == number),
        pods=tuple(pod for pod in seen.pods if pod.slice == number),
        world=world,
        member_views=members.match_members(world, seen.pods, seen.heartbeats),
        lineage=(),
    )


def _view_status(status: TrainingJobStatus, number: int) -> TrainingJobStatus:
    """Return the status with the world, the attempts and the restarts of one slice."""
    replica = find_replica(status, number)
    attempts = tuple(attempt for attempt in status.attempts if attempt.slice == number)
    newest = status.world.generation if status.world else 0
    generation = replica.world.generation if replica else 0
    drills = tuple(
        drill.model_copy(update={"generation": generation}) if drill.generation == newest else drill
        for drill in status.drills
        if drill.slice in (None, number)
    )
    return status.model_copy(
        update={
            "world": replica.world if replica else None,
            "restarts": replica.restarts if replica else Restarts(),
            "attempts": _add_missing_end(attempts, replica),
            "drills": drills,
            "waiting": None,
            "phase": "Resizing" if replica and replica.reason in DRAIN_REASONS else "",
            "display": Display(reason=replica.reason if replica else ""),
        }
    )


def _add_missing_end(attempts: tuple[Attempt, ...], replica: ReplicaStatus | None) -> tuple[Attempt, ...]:
    """Return the attempts of a slice with the end of its newest world, which the status may have no attempt of."""
    if replica is None or replica.ended is None:
        return attempts
    generation = replica.world.generation
    if attempts and attempts[-1].generation == generation:
        return attempts
    missing = Attempt(
        generation=generation, slice=replica.slice, slices=1, started=replica.world.since, ended=replica.ended
    )
    return (*attempts, missing)
