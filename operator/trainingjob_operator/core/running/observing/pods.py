"""One pod of a job: its place in the job, whether it lives, and what keeps it from running, in words.

The API server's view is one of two: `hearing` has what the pod itself says. A pod that the API server calls Running may
be on a node that lost its power a minute ago.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Children, Manifest, condition, dig, items, number, owner_uid, text
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.running.observing import nodes
from trainingjob_operator.core.times import parse_time

OVERDUE = timedelta(seconds=2)
"""How long past its deletion time a pod may be before it counts as stuck: room for clocks that differ."""
_PASSING = frozenset({"ContainerCreating", "PodInitializing", ""})


@dataclass(frozen=True)
class Trouble:
    """Why something does not run: a CamelCase word of Kubernetes, and its own text."""

    reason: str
    message: str


@dataclass(frozen=True)
class Exit:
    """How the container ended the last time."""

    code: int
    reason: str
    message: str = ""
    """What it left as termination message: words for people where it could not even start."""


@dataclass(frozen=True)
class Pod:
    """A pod of the job."""

    manifest: Manifest
    name: str
    uid: str
    job_uid: str
    """Of the child Job that made it."""
    slice: int
    host: int
    address: str
    node: str
    node_ready: bool
    """Whether its node answers; False where it is bound to none."""
    phase: str
    created: str
    deleting: bool
    overdue: bool
    """It should have been gone by now."""
    running: bool
    """Its container runs."""
    exit: Exit | None
    trouble: Trouble | None
    notice: str = ""
    """What announces that its node will go. Empty: nothing does."""

    @property
    def is_alive(self) -> bool:
        """Return whether its container runs and nobody has asked it to go."""
        return self.phase == "Running" and self.running and not self.deleting and bool(self.address)

    @property
    def is_stuck(self) -> bool:
        """Return whether it waits for a node that cannot let it go."""
        return self.deleting and self.overdue and not self.node_ready

    @property
    def is_dead(self) -> bool:
        """Return whether it will never run again, although the API server still has it."""
        return self.phase == "Failed" or self.is_stuck

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Return the order in which pods of the same host stand for it: the highest does."""
        return not self.is_dead and self.phase != "Succeeded", not self.deleting, self.created


def read_pods(children: Children, now: datetime) -> tuple[Pod, ...]:
    """Return what the manifests of pods, and of the nodes below them, say; pods without a place are left out."""
    are_believed = nodes.are_believed(children.own_node, now)
    read = (_read_pod(manifest, children, now, nodes_are_believed=are_believed) for manifest in children.pods)
    return tuple(pod for pod in read if pod)


def _read_pod(
    manifest: Manifest, children: Children, now: datetime, *, nodes_are_believed: bool
) -> Pod | None:  # None: it has no place
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


def _read_exit(container: Manifest) -> Exit | None:  # None: it has not ended yet
    ended = dig(container, "state", "terminated") or dig(container, "lastState", "terminated")
    if not ended:
        return None
    return Exit(number(ended, "exitCode") or 0, text(ended, "reason"), text(ended, "message"))


def _read_trouble(manifest: Manifest, container: Manifest) -> Trouble | None:  # None: nothing is known to be wrong
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
