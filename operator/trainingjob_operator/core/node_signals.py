"""Node signals: taints, labels and conditions that announce the end or the fault of a node.

Each component that takes nodes away has its signal. Administrators add those of their cluster in the chart's value
`nodeSignals`. If a job can train without a node, a signal keeps the job off it. The effect `drain` lets a running world
save and leave. With the effect `avoid` only new pods and new worlds stay away. Some signals report a fault of the node.
An added signal replaces the built-in ones of the same source and key. With the effect `ignore`, it switches them off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

type SignalSource = Literal["taint", "label", "condition"]
type SignalEffect = Literal["drain", "avoid", "ignore"]
SIGNAL_SOURCES: tuple[SignalSource, ...] = get_args(SignalSource.__value__)
SIGNAL_EFFECTS: tuple[SignalEffect, ...] = get_args(SignalEffect.__value__)


@dataclass(frozen=True)
class NodeSignal:
    """A taint or a label with a key, or a condition with a type."""

    source: SignalSource
    key: str
    value: str = ""
    """Value of the taint or label, or status of the condition. Empty: any value, and the status True."""
    effect: SignalEffect = "drain"
    """`drain`: a world saves and leaves the node. `avoid`: the job places no new pods there. `ignore`: no effect."""
    is_fault: bool = False
    """Whether the node is faulty, and not taken away on purpose. A faulty node is on probation after its return."""

    def __str__(self) -> str:
        """Return the signal as messages name it."""
        name = f"{self.key}={self.value}" if self.value else self.key
        return f"condition {name}" if self.source == "condition" else name


BUILTIN_SIGNALS = (
    # GKE, preemption and shutdown: https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms
    NodeSignal("taint", "cloud.google.com/impending-node-termination"),
    # GKE, maintenance: https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu
    NodeSignal("label", "cloud.google.com/active-node-maintenance", "ONGOING"),
    # AWS node termination handler: https://github.com/aws/aws-node-termination-handler
    NodeSignal("taint", "aws-node-termination-handler/spot-itn"),
    NodeSignal("taint", "aws-node-termination-handler/scheduled-maintenance"),
    NodeSignal("taint", "aws-node-termination-handler/asg-lifecycle-termination"),
    # AKS, preempted, redeployed or terminated machines, with its former name:
    # https://learn.microsoft.com/en-us/azure/aks/node-auto-drain
    NodeSignal("taint", "remediator.kubernetes.azure.com/unschedulable"),
    NodeSignal("taint", "remediator.aks.microsoft.com/unschedulable"),
    # Karpenter, consolidation, expiry and spot interruption: https://karpenter.sh/docs/concepts/disruption/
    NodeSignal("taint", "karpenter.sh/disrupted"),
    # The cluster autoscaler: https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler
    NodeSignal("taint", "ToBeDeletedByClusterAutoscaler"),
    # Permanent problems of the node problem detector: https://github.com/kubernetes/node-problem-detector
    NodeSignal("condition", "KernelDeadlock", is_fault=True),
    NodeSignal("condition", "ReadonlyFilesystem", is_fault=True),
    # NVSentinel, from quarantine to the end of the repair: https://github.com/NVIDIA/NVSentinel
    NodeSignal("label", "dgxc.nvidia.com/nvsentinel-state", is_fault=True),
)
"""Signals that the operator knows without configuration.

Those of clouds and autoscalers announce maintenance, preemption or scale-down, which say nothing about the hardware.
"""


def override_builtins(added: Sequence[NodeSignal]) -> tuple[NodeSignal, ...]:
    """Return the added signals, after the built-in ones whose source and key no added signal has."""
    if not added:
        return BUILTIN_SIGNALS
    overridden = {(signal.source, signal.key) for signal in added}
    return (*(signal for signal in BUILTIN_SIGNALS if (signal.source, signal.key) not in overridden), *added)
