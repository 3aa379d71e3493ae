"""Faults of nodes: which ends of worlds, losses and signals show that a node is faulty.

- A world ended because of one node alone, for a reason that a node can cause.
- A node on which a pod of the job runs is not ready, or gone.
- A node with a pod of the job has a signal that reports a fault, whether the world leaves it in time or not.

A node that is taken away on purpose has no fault. An administrator cordons it, or a cloud or an autoscaler announces
its end. Its loss then counts against it only if a signal reports a fault.
"""

from collections.abc import Iterator

from trainingjob_api.protocol import FailureReason
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.reasons import Reason

NODE_INDEPENDENT_REASONS = frozenset(
    {
        FailureReason.CONFIG,
        FailureReason.DATA,
        FailureReason.STORAGE,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.NON_FINITE,
        FailureReason.LOSS_SPIKE,
        FailureReason.NETWORK,
        Reason.POD_DELETED,
    }
)
"""Reasons that do not depend on the node, or that a user requested."""
WITHDRAWAL_REASONS = frozenset({Reason.NODE_LOST, Reason.HEARTBEAT_LOST, "Terminated", "NodeShutdown"})
"""Reasons of a world that ended because its node was taken away. The kubelet writes the last two into pods."""


def is_node_fault(seen: Observed, end: WorldEnd | None) -> bool:
    """Return whether a world ended because of one faulty node. `end` is None if no world ended."""
    if end is None or not end.is_single_node or end.cause.reason in NODE_INDEPENDENT_REASONS:
        return False
    is_withdrawn = any(pod.node == end.cause.node and pod.is_withdrawn for pod in seen.pods)
    return not (is_withdrawn and end.cause.reason in WITHDRAWAL_REASONS)


def describe_end(end: WorldEnd, limit: int) -> str:
    """Return the reason and the message of an end, in at most `limit` characters."""
    return f"{end.cause.reason}: {end.cause.message}"[:limit]


def iter_faulty_nodes(seen: Observed) -> Iterator[tuple[str, str]]:
    """Yield each node of the job that is faulty now, with the reason, whether a world ended or not."""
    for pod in seen.pods:
        if pod.fault_signal:
            yield pod.node, f"node {pod.node} has {pod.fault_signal}"
        # When a lost node is marked as not ready, its world has often ended and the next one trains without it.
        elif pod.phase == "Running" and not pod.is_node_ready and not pod.is_withdrawn:
            yield pod.node, f"node {pod.node} is not ready"
