"""Pods of a job: the slice and host that each represents, its liveness, and its problem if it does not run.

This is the API server's view; `hearing` has the pod's own reports. A pod that the API server lists as Running may be on
a node that lost power a minute ago.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Children, Manifest, condition, dig, items, number, owner_uid, text
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.running.observing import nodes
from trainingjob_operator.core.times import parse_time

OVERDUE = timedelta(seconds=2)
"""Time past its deletion deadline after which a pod counts as stuck. It allows for clock skew."""
_PASSING = frozenset({"ContainerCreating", "PodInitializing", ""})


@dataclass(frozen=True)
class Trouble:
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
    node_ready: bool
    """Whether its node is ready. False if it is not scheduled."""
    phase: str
    created: str
    deleting: bool
    overdue: bool
    """Whether its deletion deadline has passed by more than `OVERDUE`."""
    running: bool
    """Whether its container is neither waiting nor terminated."""
    exit: Exit | None
    trouble: Trouble | None
    notice: str = ""
    """Termination notice of its node. Empty: there is none."""

    @property
    def is_alive(self) -> bool:
        """Return whether its container runs and the pod is not being deleted."""
        return self.phase == "Running" and self.running and not self.deleting and bool(self.address)

    @property
    def is_stuck(self) -> bool:
        """Return whether its deletion is blocked by a node that is not ready."""
        return self.deleting and self.overdue and not self.node_ready

    @property
    def is_dead(self) -> bool:
        """Return whether it can never run again, although the API server still lists it."""
        return self.phase == "Failed" or self.is_stuck

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Return the sort key among pods of one host. The highest pod represents the host."""
        return not self.is_dead and self.phase != "Succeeded", not self.deleting, self.created


def read_pods(children: Children, now: datetime) -> tuple[Pod, ...]:
    """Return the pods of the manifests, with their node state. Pods without slice or host labels are left out."""
    are_believed = nodes.are_believed(children.own_node, now)
    read = (_read_pod(manifest, children, now, nodes_are_believed=are_believed) for manifest in children.pods)
    return tuple(pod for pod in read if pod)


def _read_pod(
    manifest: Manifest, children: Children, now: datetime, *, nodes_are_believed: bool
) -> Pod | None:  # None: slice or host labels are missing
    labels = dig(manifest, "metadata", "labels")
    offset, index, host = (number(labels, key) for key in (SLICE_OFFSET_LABEL, JOB_INDEX_LABEL, HOST_LABEL))
    if offset is None or index is None or host is None:
        return None
    name = text(manifest, "spec", "nodeName")
    node = children.nodes.get(name)
    phase = text(manifest, "status", "phase")
    deletion = parse_time(text(manifest, "metadata", "deletionTimestamp"))
    container = next(items(manifest, "status", "containerStatuses"), {})
    uid = text(manifest, "metadata", "uid")
    return Pod(
        manifest=manifest,
        name=text(manifest, "metadata", "name"),
        uid=uid,
        job_uid=owner_uid(manifest),
        slice=offset + index,
        host=host,
        address=text(manifest, "status", "podIP"),
        node=name,
        node_ready=nodes.is_ready(node) or (node is not None and not nodes_are_believed),
        phase=phase,
        created=text(manifest, "metadata", "creationTimestamp"),
        deleting=deletion is not None or uid in children.orphans,
        overdue=deletion is not None and now > deletion + OVERDUE,
        running=phase == "Running" and not _has_stopped(container),
        exit=_read_exit(container),
        trouble=_read_trouble(manifest, container),
        notice=nodes.find_notice(node),
    )


def _has_stopped(container: Manifest) -> bool:
    return bool(dig(container, "state", "terminated") or dig(container, "state", "waiting"))


def _read_exit(container: Manifest) -> Exit | None:  # None: it has not terminated yet
    ended = dig(container, "state", "terminated") or dig(container, "lastState", "terminated")
    if not ended:
        return None
    return Exit(number(ended, "exitCode") or 0, text(ended, "reason"), text(ended, "message"))


def _read_trouble(manifest: Manifest, container: Manifest) -> Trouble | None:  # None: no problem is known
    waiting = text(container, "state", "waiting", "reason")
    if waiting not in _PASSING:
        last_words = text(container, "lastState", "terminated", "message")
        return Trouble(waiting, last_words or text(container, "state", "waiting", "message"))
    scheduled = condition(manifest, "PodScheduled")
    if scheduled.get("status") == "False":
        return Trouble(text(scheduled, "reason") or "Unschedulable", text(scheduled, "message"))
    if text(manifest, "status", "phase") == "Failed":
        return Trouble(text(manifest, "status", "reason") or "PodFailed", text(manifest, "status", "message"))
    return None
