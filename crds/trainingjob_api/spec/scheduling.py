"""The scheduling section: where and when the pods run."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    Duration,
    Label,
    LabelKey,
    ObjectName,
    Strict,
)
from trainingjob_api.meta import Example, Live, NoStoredDefaults, Unit

START_TIMEOUT = "15m"
"""Default of `startTimeout`: longer than a cloud usually takes for further nodes."""


class Toleration(Strict):
    """Toleration, as in a pod's spec."""

    key: Annotated[LabelKey | None, Example("spot")] = Field(
        default=None, description="Taint key. Unset with `Exists`: every taint."
    )
    operator: Annotated[Literal["Equal", "Exists"], Example("Equal")] = Field(
        default="Equal", description="Match of the taint: `Equal` requires this `value`, `Exists` accepts any."
    )
    value: Annotated[Label | None, Example("yes")] = Field(default=None, description="Taint value, for `Equal`.")
    effect: Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None, Example("NoExecute")] = Field(
        default=None, description="Taint effect. Unset: every effect."
    )
    toleration_seconds: Annotated[Annotated[int, Field(ge=0, le=86400)] | None, Unit("seconds"), Example(60)] = Field(
        default=None, description="Seconds for which the pod stays, for `NoExecute`. Unset: without limit."
    )


class Scheduling(Strict):
    """Where the pods may run, and the queue in which they wait."""

    queue_name: Annotated[ObjectName | None, Example("research")] = Field(
        default=None, description="Kueue LocalQueue of the namespace in which the job waits."
    )
    priority_class_name: Annotated[ObjectName | None, Example("research")] = Field(
        default=None, description="PriorityClass for scheduling and preemption of the pods."
    )
    node_selector: Annotated[dict[LabelKey, Label], Example({"disk": "ssd"})] = Field(
        default={}, max_length=32, description="Labels that a node must have to run a pod of the job."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints that the pods tolerate.")
    pod_profile: Annotated[ObjectName | None, Example("gke-a3-ultra")] = Field(
        default=None,
        exclude_if=lambda name: name is None,  # an agent before 0.1 refuses a field that it does not know
        description="Pod profile that administrators defined in the chart: devices, networks and host libraries. "
        "Unset: the profile of the accelerator, if there is one.",
    )
    exclusive_topology: Annotated[LabelKey | None, Example("topology.example/rack")] = Field(
        default=None,
        description="Node label whose value all hosts of a slice share, and no two slices. Unset: the accelerator's "
        "own for slices with several hosts, none on `cpu`.",
    )
    required_topology: Annotated[LabelKey | None, Example("cloud.provider.com/topology-rack")] = Field(
        default=None,
        exclude_if=lambda level: level is None,  # an agent before 0.1 refuses a field that it does not know
        description="Level of Kueue's Topology in one domain of which all hosts of a slice must run.",
    )
    preferred_topology: Annotated[LabelKey | None, Example("cloud.provider.com/topology-block")] = Field(
        default=None,
        exclude_if=lambda level: level is None,  # an agent before 0.1 refuses a field that it does not know
        description="Level of Kueue's Topology in one domain of which the hosts of a JobSet should run.",
    )
    ready_timeout: Annotated[Duration | None, Example("1h")] = Field(
        default=None,
        exclude_if=lambda timeout: timeout is None,  # an agent before 0.1 refuses a field that it does not know
        description="Time for all pods of a JobSet to be ready, at the start and after a loss, before Kueue evicts it. "
        "Kueue before 0.20, or without its gate `WorkloadLevelWaitForPodsReady`, uses its own timeouts.",
    )
    start_timeout: Annotated[Duration, Example("30m"), Live(), NoStoredDefaults()] = Field(
        default=START_TIMEOUT,
        exclude_if=lambda timeout: timeout == START_TIMEOUT,  # as for `podProfile`
        description="Time after which a job without a queue releases its pods while the cluster runs only a part of "
        "its minimum. It requests them again after a growing backoff.",
    )
