"""Members of the committed world, their pods and their newest reports.

The status stores a world as names and UIDs of pods, so that a restarted operator recognizes it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType

from trainingjob_api.protocol import HostReport
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import WorldStatus
from trainingjob_api.world import STORAGE_TIERS, Member, Span, Tier, World
from trainingjob_operator.core.observe import lineage
from trainingjob_operator.core.observe.heartbeats import HeartbeatState, LatestReport
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.times import parse_time, seconds_between

MIN_LEAD_SECONDS = 1.0
"""Minimum age of a world's pods at its start. The API server truncates their creation to a second."""

type HostKey = tuple[int, int]
"""Slice and host."""
type PodName = tuple[str, str]
"""Name and UID of a pod."""


@dataclass(frozen=True)
class MemberView:
    """A member of the committed world, its pod if it still exists, and that pod's newest report."""

    member: Member
    pod: Pod | None
    latest_report: LatestReport | None
    generation: int
    """Generation of the world."""

    @cached_property
    def report(self) -> HostReport | None:  # None: its trainer process has not joined this world
        """Return the newest report if it belongs to this world's generation."""
        if self.latest_report is None or self.latest_report.report.generation != self.generation:
            return None
        return self.latest_report.report


def hash_members(members: Sequence[Member]) -> str:
    """Return a hash of a world's members. Equal hashes mean the same processes."""
    text = "\n".join(f"{member.slice}/{member.host}/{member.pod_uid}" for member in members)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rebuild_world(
    status: TrainingJobStatus,
    job_uid: str,
    pods: Iterable[Pod],
    latest_reports: Mapping[str, LatestReport] = MappingProxyType({}),
) -> World | None:  # None: none, or ended
    """Return the committed world from the status. Addresses and nodes come from the pods that still exist.

    It equals the world that was claimed: hosts of one world that received different ones would save at different steps.
    """
    world_status = status.world
    if world_status is None or status.completion_time is not None or has_world_ended(status):
        return None
    if not world_status.slices or world_status.generation < 1:
        return None  # not written by this operator
    by_uid = {pod.uid: pod for pod in pods}
    if world_status.pods:
        members = _make_members(_read_pod_names(world_status), by_uid)
    else:
        members = _find_members(world_status, by_uid, latest_reports)
    return World(
        generation=world_status.generation,
        job_uid=job_uid,
        coordinator=world_status.coordinator,
        members=members,
        lineage=lineage.lineage_before(status.lineage, world_status.generation),
        rollbacks=tuple(rollback for rollback in status.rollbacks if rollback.generation < world_status.generation),
        committed=status.checkpoint.step if status.checkpoint else 0,
        live=world_status.live,
        probation=world_status.probation,
        shadow=world_status.shadow,
    )


def _read_pod_names(world: WorldStatus) -> Iterator[tuple[HostKey, PodName]]:
    per_slice = max(len(world.pods) // len(world.slices), 1)
    for process, name_and_uid in enumerate(world.pods):
        name, _, uid = name_and_uid.partition("/")
        yield (world.slices[min(process // per_slice, len(world.slices) - 1)], process % per_slice), (name, uid)


def _find_members(
    world: WorldStatus, by_uid: Mapping[str, Pod], latest_reports: Mapping[str, LatestReport]
) -> tuple[Member, ...]:
    """Return the members of a very large world, whose pods are not in the status. Its hash of members confirms them.

    A replacement may exist while a member still terminates. Members are older than their world, and the reports name
    members whose pods no longer exist. If neither matches the hash, the pods that represent the hosts now are returned.
    """
    for pod_names in _list_candidates(world, by_uid, latest_reports):
        members = _make_members(sorted(pod_names.items()), by_uid)
        if hash_members(members) == world.members:
            return members
    current = sorted((pod for pod in by_uid.values() if pod.slice in world.slices), key=lambda pod: pod.rank)
    return _make_members(sorted({(pod.slice, pod.host): (pod.name, pod.uid) for pod in current}.items()), by_uid)


def _list_candidates(
    world: WorldStatus, by_uid: Mapping[str, Pod], latest_reports: Mapping[str, LatestReport]
) -> Iterator[dict[HostKey, PodName]]:
    """Return the sets of pods that may be the members of a world, the likely one first. There may be thousands."""
    older = _list_older_pods(world, by_uid.values())
    yield older
    reports = (latest_report.report for latest_report in latest_reports.values())
    yield older | {
        (report.slice, report.host): (report.pod, report.pod_uid)
        for report in reports
        if report.generation == world.generation and report.slice in world.slices
    }


def find_replaced_hosts(world: WorldStatus, pods: Iterable[Pod], hosts: Iterable[HostKey]) -> tuple[HostKey, ...]:
    """Return the hosts whose pods of a world no longer exist, because no pod of them is older than the world."""
    older = _list_older_pods(world, pods)
    return tuple(host_key for host_key in hosts if host_key[0] in world.slices and host_key not in older)


def _list_older_pods(world: WorldStatus, pods: Iterable[Pod]) -> dict[HostKey, PodName]:
    """Return the newest pod of each host that is older than a world."""
    since = parse_time(world.since)
    if since is None:
        return {}
    pods = [pod for pod in pods if pod.slice in world.slices]
    lead_seconds = {created: seconds_between(created, since) for created in {pod.created for pod in pods}}
    return {
        (pod.slice, pod.host): (pod.name, pod.uid)
        for pod in sorted(pods, key=lambda pod: pod.created)
        if lead_seconds[pod.created] >= MIN_LEAD_SECONDS
    }


def _make_members(pod_names: Iterable[tuple[HostKey, PodName]], by_uid: Mapping[str, Pod]) -> tuple[Member, ...]:
    """Return the members in the order of their process ids. Addresses and nodes come from the pods that still exist."""
    members = []
    for process, ((number, host), (name, uid)) in enumerate(pod_names):
        pod = by_uid.get(uid)
        address_and_node = (pod.address, pod.node) if pod else ("", "")
        members.append(_make_member(process, number, host, name, uid, *address_and_node))
    return tuple(members)


@lru_cache(maxsize=16_384)  # every decision rebuilds the world, and its members stay the same for hours
def _make_member(process: int, number: int, host: int, pod: str, uid: str, address: str, node: str) -> Member:
    return Member(process=process, slice=number, host=host, pod=pod, pod_uid=uid, address=address, node=node)


def has_world_ended(status: TrainingJobStatus) -> bool:
    """Return whether the status records the end of the committed world."""
    if not status.world or not status.attempts:
        return False
    last = status.attempts[-1]
    return last.generation == status.world.generation and last.ended is not None


def match_members(world: World | None, pods: Iterable[Pod], heartbeats: HeartbeatState) -> tuple[MemberView, ...]:
    """Return the members of a world with their pods and reports."""
    if world is None:
        return ()
    by_uid = {pod.uid: pod for pod in pods}
    return tuple(
        MemberView(member, by_uid.get(member.pod_uid), heartbeats.latest_reports.get(member.pod_uid), world.generation)
        for member in world.members
    )


def find_restored_step(member_views: Iterable[MemberView]) -> int | None:  # None: no member has restored yet
    """Return the step that the world resumed from."""
    report = _find_restoring_report(member_views)
    return report.restored if report else None


def find_restored_tier(
    member_views: Iterable[MemberView],
) -> Tier | None:  # None: no member has restored yet, or training began from scratch
    """Return the storage tier of the step that the world resumed from."""
    report = _find_restoring_report(member_views)
    return report.tier if report and report.restored else None


def find_stored_step(member_views: Iterable[MemberView]) -> int | None:  # None: no member has restored such a step
    """Return the step that the world resumed from, if it was in storage."""
    report = _find_restoring_report(member_views)
    return report.restored if report and report.restored and report.tier in STORAGE_TIERS else None


def find_missing_lineage(member_views: Iterable[MemberView]) -> tuple[Span, ...]:
    """Return the generations that led to the step that the world resumed from and are missing in its lineage."""
    report = _find_restoring_report(member_views)
    return report.missing_lineage if report else ()


def find_newest_step(member_views: Sequence[MemberView]) -> int | None:  # None: no member has restored yet
    """Return the newest step that the world is known to have reached."""
    steps = [
        member_view.report.progress.step
        for member_view in member_views
        if member_view.report and member_view.report.progress
    ]
    return max(steps, default=find_restored_step(member_views))


def _find_restoring_report(member_views: Iterable[MemberView]) -> HostReport | None:
    return next(
        (
            member_view.report
            for member_view in member_views
            if member_view.report and member_view.report.restored is not None
        ),
        None,
    )
