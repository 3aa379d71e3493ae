"""The scheduling section: where and when the pods run."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    Label,
    LabelKey,
    ObjectName,
    Strict,
)


class Toleration(Strict):
    """A toleration as in a pod's spec."""

    key: LabelKey | None = Field(default=None, description="Taint key. Unset with `Exists`: every taint.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="`Equal` tolerates a taint with this `value`, `Exists` one with any."
    )
    value: Label | None = Field(default=None, description="Taint value, for `Equal`.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect. Unset: every effect."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86400)] | None = Field(
        default=None, description="For `NoExecute`: how long the pod stays. Unset: for good."
    )


class Scheduling(Strict):
    """Where the pods may run, and the queue in which they wait."""

    queue_name: ObjectName | None = Field(default=None, description="A Kueue LocalQueue of the namespace.")
    priority_class_name: ObjectName | None = Field(
        default=None, description="The PriorityClass by which pods are scheduled and preempted."
    )
    node_selector: dict[LabelKey, Label] = Field(
        default={}, max_length=32, description="Labels that a node must carry to run a pod of the job."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints the pods tolerate.")
    exclusive_topology: LabelKey | None = Field(
        default=None,
        description="A node label: all hosts of a slice share one value of it, and no two slices do. Unset: the "
        "accelerator's own where a slice has several hosts (GKE's node pools), none on `cpu`.",
    )
