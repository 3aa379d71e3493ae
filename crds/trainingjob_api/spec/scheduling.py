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
    """Toleration, as in a pod's spec."""

    key: LabelKey | None = Field(default=None, description="Taint key. Unset with `Exists`: every taint.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="Match of the taint: `Equal` requires this `value`, `Exists` accepts any."
    )
    value: Label | None = Field(default=None, description="Taint value, for `Equal`.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect. Unset: every effect."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86400)] | None = Field(
        default=None, description="Seconds for which the pod stays, for `NoExecute`. Unset: without limit."
    )


class Scheduling(Strict):
    """Where the pods may run, and the queue in which they wait."""

    queue_name: ObjectName | None = Field(
        default=None, description="Kueue LocalQueue of the namespace in which the job waits."
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="PriorityClass for scheduling and preemption of the pods."
    )
    node_selector: dict[LabelKey, Label] = Field(
        default={}, max_length=32, description="Labels that a node must have to run a pod of the job."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints that the pods tolerate.")
    exclusive_topology: LabelKey | None = Field(
        default=None,
        description="Node label whose value all hosts of a slice share, and no two slices. Unset: the accelerator's "
        "own for slices with several hosts, none on `cpu`.",
    )
