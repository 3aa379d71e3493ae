"""Pods of a job: the slice and host that each represents, its liveness, and its problem if it does not run.

This is the API server's view; `heartbeats` has the pod's own reports. A pod that the API server lists as Running may be
on a node that lost power a minute ago.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import (
    Children,
    Manifest,
    find_condition,
    get_int,
    get_text,
    get_value,
    iter_items,
    owner_uid,
)
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.core.observe import nodes
from trainingjob_operator.core.times import parse_time

DELETION_TOLERANCE = timedelta(seconds=2)
"""Time past its deletion deadline after which a pod counts as stuck. It allows for clock skew."""
UNSCHEDULABLE = "Unschedulable"
"""Reason of a pod for which the scheduler finds no node."""
_STARTUP_REASONS = frozenset({"ContainerCreating", "PodInitializing", ""})


@dataclass(frozen=True)
class ObjectProblem:
    """Why something does not run: a CamelCase reason of Kubernetes and its message."""

    reason: str
    message: str


@dataclass(frozen=True)
class Exit:
    """The last termination of the container."""

    code: int
    reason: str
    message: str = ""
    """Termination message: human-readable text if the container could not start."""


@dataclass(frozen=True)
class Pod:
    """A pod of the job."""

    manifest: Manifest
    name: str
    uid: str
    job_uid: str
    """UID of the child Job that created it."""
    slice: int
    host: int
    address: str
    node: str
    is_node_ready: bool
    """Whether its node is ready. False if it is not scheduled."""
    phase: str
    created: str
    is_deleting: bool
    is_overdue: bool
    """Whether its deletion deadline has passed by more than `DELETION_TOLERANCE`."""
    is_running: bool
    """Whether its container is neither waiting nor terminated."""
    last_exit: Exit | None
    problem: ObjectProblem | None
    termination_notice: str = ""
    """Termination notice of its node. Empty: there is none."""
    avoid_signal: str = ""
    """Signal of its node that keeps new pods away. Empty: there is none."""
    fault_signal: str = ""
    """Signal of its node that reports a fault. Empty: there is none."""
    is_node_cordoned: bool = False
    """Whether its node takes no new pods."""
    is_node_gone: bool = False
    """Whether the API server has no node of that name."""
    settled: datetime | None = None
    """Time at which it was created, scheduled or found unschedulable. None: unknown."""
    group: str = ""
    """PodGroup whose pods the scheduler should place all at once. Empty: none."""

    @property
    def is_alive(self) -> bool:
        """Return whether its container runs and the pod is not being deleted."""
        return self.phase == "Running" and self.is_running and not self.is_deleting and bool(self.address)

    @property
    def is_unschedulable(self) -> bool:
        """Return whether the scheduler finds no node for it."""
        return self.problem is not None and self.problem.reason == UNSCHEDULABLE and not self.is_deleting

    @property
    def is_stuck(self) -> bool:
        """Return whether its deletion is blocked by a node that is not ready."""
        return self.is_deleting and self.is_overdue and not self.is_node_ready

    @property
    def is_node_usable(self) -> bool:
        """Return whether new pods may run on its node."""
        is_marked = self.is_node_cordoned or self.termination_notice or self.avoid_signal
        return self.is_node_ready and not is_marked

    @property
    def is_withdrawn(self) -> bool:
        """Return whether its node is taken away on purpose: cordoned, announced, or drained before its deletion."""
        is_announced = self.is_node_cordoned or self.termination_notice != ""
        return not self.fault_signal and (is_announced or (self.is_node_gone and self.is_deleting))

    def settled_seconds(self, now: datetime) -> float:
        """Return the seconds since it was created, scheduled or found unschedulable. 0: unknown."""
        return max((now - self.settled).total_seconds(), 0.0) if self.settled else 0.0

    @property
    def is_dead(self) -> bool:
        """Return whether it can never run again, although the API server still lists it."""
        return self.phase == "Failed" or self.is_stuck

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Return the sort key among pods of one host. The highest pod represents the host."""
        return not self.is_dead and self.phase != "Succeeded", not self.is_deleting, self.created


def read_pods(children: Children, now: datetime) -> tuple[Pod, ...]:
    """Return the pods of the manifests, with their node state. Pods without slice or host labels are left out."""
    return PodReader().read(children, now)


@dataclass(frozen=True)
class _Reading:
    """What the manifests of a pod and its node were read as."""

    manifest: Manifest
    node: Manifest | None
    pod: Pod | None

    def is_current(self, manifest: Manifest, children: Children) -> bool:
        """Return whether the pod would be read the same. A deletion becomes overdue without a change."""
        if self.manifest is not manifest or self.pod is None:
            return False
        has_same_node = self.node is children.nodes.get(self.pod.node)
        return has_same_node and not self.pod.is_deleting and self.pod.uid not in children.orphans


class PodReader:
    """Reader of one job's pods that reads only changed manifests again: a large job has thousands."""

    def __init__(self) -> None:
        self._readings: dict[str, _Reading] = {}  # by the UIDs of the pods
        self._shared: tuple[bool, tuple[NodeSignal, ...]] | None = None
        """What all pods were read from: whether the conditions of nodes are reliable, and the added signals."""

    def read(self, children: Children, now: datetime) -> tuple[Pod, ...]:
        """Return what `read_pods` returns. The manifest of a changed object must be a new one."""
        are_believed = nodes.is_node_status_reliable(children.own_node, now)
        former = self._readings if self._shared == (are_believed, children.added_signals) else {}
        self._shared, self._readings = (are_believed, children.added_signals), {}
        for manifest in children.pods:
            uid = get_text(manifest, "metadata", "uid")
            reading = former.get(uid)
            if reading is None or not reading.is_current(manifest, children):
                node = children.nodes.get(get_text(manifest, "spec", "nodeName"))
                pod = _read_pod(manifest, node, children, now, nodes_are_believed=are_believed)
                reading = _Reading(manifest, node, pod)
            self._readings[uid] = reading
        return tuple(reading.pod for reading in self._readings.values() if reading.pod)


def _read_pod(
    manifest: Manifest, node: Manifest | None, children: Children, now: datetime, *, nodes_are_believed: bool
) -> Pod | None:  # None: slice or host labels are missing
    labels = get_value(manifest, "metadata", "labels")
    offset, index, host = (get_int(labels, key) for key in (SLICE_OFFSET_LABEL, JOB_INDEX_LABEL, HOST_LABEL))
    if offset is None or index is None or host is None:
        return None
    phase = get_text(manifest, "status", "phase")
    deletion = parse_time(get_text(manifest, "metadata", "deletionTimestamp"))
    container = next(iter_items(manifest, "status", "containerStatuses"), {})
    notice = nodes.find_termination_notice(node, children.added_signals)
    avoid = nodes.find_avoid_signal(node, children.added_signals)
    uid = get_text(manifest, "metadata", "uid")
    created = get_text(manifest, "metadata", "creationTimestamp")
    scheduled = get_text(find_condition(manifest, "PodScheduled"), "lastTransitionTime")
    return Pod(
        manifest=manifest,
        name=get_text(manifest, "metadata", "name"),
        uid=uid,
        job_uid=owner_uid(manifest),
        slice=offset + index,
        host=host,
        address=get_text(manifest, "status", "podIP"),
        node=get_text(manifest, "spec", "nodeName"),
        is_node_ready=nodes.is_node_ready(node) or (node is not None and not nodes_are_believed),
        phase=phase,
        created=created,
        is_deleting=deletion is not None or uid in children.orphans,
        is_overdue=deletion is not None and now > deletion + DELETION_TOLERANCE,
        is_running=phase == "Running" and not _is_not_running(container),
        last_exit=read_exit(container),
        problem=read_problem(manifest, container),
        termination_notice=notice,
        avoid_signal=avoid,
        fault_signal=nodes.find_fault_signal(node, children.added_signals) if notice or avoid else "",
        is_node_cordoned=nodes.is_cordoned(node),
        is_node_gone=node is None,
        settled=parse_time(max(created, scheduled)),
        group=get_text(manifest, "spec", "schedulingGroup", "podGroupName"),
    )


def _is_not_running(container: Manifest) -> bool:
    return bool(get_value(container, "state", "terminated") or get_value(container, "state", "waiting"))


def read_exit(container: Manifest) -> Exit | None:  # None: it has not terminated yet
    """Return the last termination of a container, from its status."""
    ended = get_value(container, "state", "terminated") or get_value(container, "lastState", "terminated")
    if not ended:
        return None
    return Exit(get_int(ended, "exitCode") or 0, get_text(ended, "reason"), get_text(ended, "message"))


def read_problem(manifest: Manifest, container: Manifest) -> ObjectProblem | None:  # None: no problem is known
    """Return why a pod does not run, from its manifest and the status of its container."""
    waiting = get_text(container, "state", "waiting", "reason")
    if waiting not in _STARTUP_REASONS:
        termination_message = get_text(container, "lastState", "terminated", "message")
        return ObjectProblem(waiting, termination_message or get_text(container, "state", "waiting", "message"))
    scheduled = find_condition(manifest, "PodScheduled")
    if scheduled.get("status") == "False":
        return ObjectProblem(get_text(scheduled, "reason") or UNSCHEDULABLE, get_text(scheduled, "message"))
    if get_text(manifest, "status", "phase") == "Failed":
        return ObjectProblem(
            get_text(manifest, "status", "reason") or "PodFailed", get_text(manifest, "status", "message")
        )
    return None
