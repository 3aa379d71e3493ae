"""The elastic section: reactions to lost and recovered slices."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    Duration,
    Strict,
)
from trainingjob_api.meta import PODS, Example, NoStoredDefaults, Unit

FAULT_LIFETIME_SECONDS = 86_400
"""Seconds after which the operator discards a fault of a node."""


class Elastic(Strict):
    """Elasticity: how the job reacts to lost and recovered slices."""

    policy: Annotated[Literal["shrink", "wait", "auto"], Example("wait")] = Field(
        default="shrink",
        description="Reaction to lost slices: `shrink` continues with the rest; `wait` waits for repair, at most "
        "`shrinkAfter`. `auto` waits only while that is expected to cost less than two restarts.",
    )
    shrink_after: Annotated[Duration, Example("10m")] = Field(
        default="10m",
        description="Time to wait for a repair with `policy: wait`, and the maximum with `auto`. Choose it longer "
        "than a repair takes.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=10000), Unit("failures"), Example(10)] = Field(
        default=10,
        description="Failures of the training program over the job's life before the job fails. Failures of nodes, "
        "network and storage, planned changes and suspensions do not count.",
    )
    max_restarts_without_commit: Annotated[int, Field(ge=1, le=10000), Unit("failures"), Example(5)] = Field(
        default=5,
        description="Failures in a row without a new checkpoint before the job fails, with growing backoff from the "
        "second on. Lost nodes, planned changes and suspensions do not count.",
    )
    node_exclusion: Annotated[Literal["avoid", "report"], Example("report")] = Field(
        default="avoid",
        description="Reaction to a node that alone ended two worlds within a day. `avoid` recreates a slice above "
        "the minimum elsewhere; `report` only emits an event.",
    )
    node_probation: Annotated[Duration, Example("12h"), NoStoredDefaults()] = Field(
        default="24h",
        exclude_if=lambda probation: probation == "24h",  # an agent before 0.1 refuses a field that it does not know
        description="Time for which the job uses a node last: from its fault or, if it was away for repair, from its "
        "return. The maximum is 24h.",
    )
    grow_cooldown: Annotated[Duration, Example("1m")] = Field(
        default="1m", description="Minimum time between a change of size and the next growth."
    )
    heartbeat_timeout: Annotated[Duration, Example("4s"), PODS] = Field(
        default="4s",
        description="Time without a heartbeat after which a host counts as silent. The job shrinks only if its peers "
        "stop progressing too, or its node is not ready.",
    )
    progress_timeout: Annotated[Duration | None, Example("30s")] = Field(
        default=None,
        description="Time without a step after which a world counts as hung, at least ten times its median step. "
        "Unset: 30s, or twice `heartbeatTimeout` if that is longer.",
    )
    hot_standby: Annotated[bool, Example(False), PODS] = Field(
        default=False,
        description="Keeps processes of the next smaller world connected and compiled, to continue within a step "
        "after a loss. Only on `cpu`; a small model takes about 220 MB.",
    )
    fault_injection: Annotated[Literal["refused", "allowed"], Example("allowed"), PODS] = Field(
        default="refused",
        description="Permission for `kubectl trainingjob drill` to inject faults into this job, to measure its "
        "recovery.",
    )
