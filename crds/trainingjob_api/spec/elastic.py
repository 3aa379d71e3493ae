"""The elastic section: reactions to lost and recovered slices."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    Duration,
    Strict,
)


class Elastic(Strict):
    """Elasticity: how the job reacts to lost and recovered slices."""

    policy: Literal["shrink", "wait", "auto"] = Field(
        default="shrink",
        description="What follows when slices are lost and enough are left. `shrink`: train on at once with those. "
        "`wait`: train on when there are as many slices as before, at the latest after `shrinkAfter` with those there "
        "are. `auto`: wait only as long as that is expected to cost less training than two restarts, by how long this "
        "job's repairs and restarts took so far. Planned changes wait for nothing.",
    )
    shrink_after: Duration = Field(
        default="10m",
        description="With `policy: wait`: how long a repair is waited for; with `auto` at most. Choose it longer than "
        "a repair takes, and no longer than the steps of a smaller world are worth giving up.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=10000)] = Field(
        default=10,
        description="Failures of the training program before the job fails, over its whole life. What machines, the "
        "network and storage do, lost nodes, planned changes and suspensions never count.",
    )
    max_restarts_without_commit: Annotated[int, Field(ge=1, le=10000)] = Field(
        default=5,
        description="Failures in a row, of the training program or of what it runs on (devices, the network, storage, "
        "hosts that hang), without a newly saved step in between, before the job fails. From the second of them on, "
        "each restart waits longer than the one before. Lost nodes, planned changes and suspensions never count.",
    )
    node_exclusion: Literal["avoid", "report"] = Field(
        default="avoid",
        description="What follows when worlds end twice within a day for the same one node, while the others are well. "
        "`avoid`: a slice above the minimum is made anew without that node, as long as there is another. `report`: an "
        "event alone asks for the node to be looked at, as it does for a slice of the minimum in any case.",
    )
    grow_cooldown: Duration = Field(
        default="1m", description="Shortest time between a change of size and the next growth."
    )
    heartbeat_timeout: Duration = Field(
        default="4s",
        description="A host that sends no heartbeat for this long is silent. Silence shrinks the job only "
        "when its peers stop progressing too, or its node is not ready.",
    )
    progress_timeout: Duration | None = Field(
        default=None,
        description="A world whose hosts all report and that makes no step for this long hangs, or for ten times its "
        "median step where that is longer. The host that the others wait for is named, and all start again from the "
        "newest checkpoint. Unset: 30s, or twice `heartbeatTimeout` where that is longer.",
    )
    hot_standby: bool = Field(
        default=False,
        description="Let the processes of the next smaller world wait beside the training ones, connected and with "
        "their programs loaded, so that they go on within a step when a slice is lost. Only on `cpu`: elsewhere one "
        "process owns the devices. They take memory of `runtime.resources.memory`: about 220 MB for a small model.",
    )
    fault_injection: Literal["refused", "allowed"] = Field(
        default="refused",
        description="Whether `kubectl trainingjob drill` may make this job suffer faults, to measure how it recovers.",
    )
