"""The worlds in the status: the committed one, past attempts with their causes, restarts and waits."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Open, Text, Time
from trainingjob_api.live import LiveFields
from trainingjob_api.world import Tier


class WorldStatus(Open):
    """The committed world: agents receive only generations that are written here."""

    generation: int = Field(description="Number of the world; each new world has a higher one.")
    slices: tuple[int, ...] = Field(default=(), max_length=256, description="Indices of the slices that train in it.")
    coordinator: Annotated[str, Field(max_length=300)] = Field(description="Address of JAX's coordination service.")
    members: Annotated[str, Field(max_length=64)] = Field(
        description="Hash of its pods: a claim holds for these pods only."
    )
    pods: tuple[Annotated[str, Field(max_length=320)], ...] = Field(
        default=(), max_length=4096, description="Pods of the world as `name/uid`, in the order of their process ids."
    )
    live: LiveFields | None = Field(
        default=None, description="Live fields that the world trains with; an edit of them forms the next world."
    )
    probation: tuple[int, ...] = Field(
        default=(), max_length=4096, description="Processes of new pods on nodes on probation when it was formed."
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Hot standby world that took over as this world. Empty: none."
    )
    since: Time = Field(description="Time at which this world was formed.")
    why: Text = Field(default="", description="Reason for forming it: a loss, a recovery, an edit.")


class Waiting(Open):
    """A previous world size that the job waits for, under `elastic.policy: wait` or `auto`."""

    slices: int = Field(description="Number of slices that the previous world had.")
    since: Time = Field(description="Time at which the wait began. It ends with the first step of a world.")


class AdmissionBackOff(Open):
    """The release of a job's slices, because Kueue or the cluster gave it fewer than it needs."""

    releases: int = Field(description="Number of consecutive releases without a world.")
    released: Time = Field(description="Time of the last release.")


class Restarts(Open):
    """Restarts of training after unplanned ends of worlds."""

    total: int = Field(default=0, description="Number of all restarts, including those after lost nodes.")
    counted: int = Field(default=0, description="Number of failures of the program, which count towards `maxRestarts`.")
    since_commit: int = Field(
        default=0,
        description="Consecutive failures of the program or its environment without a new checkpoint, which "
        "count towards `maxRestartsWithoutCommit`.",
    )
    lost_since_commit: int = Field(
        default=0,
        description="Consecutive losses of nodes, pods and agents without a new checkpoint. From the fourth on, "
        "each restart has a backoff; no number of them fails the job.",
    )
    failed: Time | None = Field(
        default=None,
        description="Time at which the last world failed, from which the backoff counts. Unset: a world was "
        "formed since.",
    )


class Cause(Open):
    """The cause of a world's end."""

    reason: Annotated[str, Field(max_length=64)] = Field(description="Cause in one CamelCase word.")
    message: Text = Field(default="", description="Explanation of the cause for people.")
    slice: int | None = Field(
        default=None, description="Index of the slice that failed first. Unset: several failed, or none."
    )
    host: int | None = Field(default=None, description="Index of the host in that slice that failed first.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Kubernetes node of the host.")
    step: int | None = Field(
        default=None, description="Step that failed. Unset: no step was running, or it is unknown."
    )
    phase: Annotated[str, Field(max_length=32)] = Field(
        default="",
        description="Phase in which it hung, such as `saving`.",
    )
    exit_code: int | None = Field(default=None, description="Exit code of the program on that host.")
    log: Annotated[str, Field(max_length=2048)] = Field(default="", description="Last output of its program.")


class ReplicaStatus(Open):
    """Slice that trains as a replica, in a world with this slice alone."""

    slice: int = Field(description="Index of the slice that trains as this replica.")
    world: WorldStatus = Field(description="Newest world of the slice.")
    ended: Time | None = Field(default=None, description="Time at which that world ended. Unset: it has not ended.")
    reason: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Situation of the slice in one CamelCase word, such as `Training`."
    )
    stopped: Text = Field(
        default="",
        description="Failure after which the slice restarts no more, until the spec is edited. Empty: none.",
    )
    restarts: Restarts = Field(default=Restarts(), description="Unplanned restarts of this slice.")


class Attempt(Open):
    """One world's life."""

    generation: int = Field(description="Generation of the world that this attempt was.")
    slice: int | None = Field(
        default=None, description="Index of the only slice of a replica's world. Unset: the world spans all slices."
    )
    slices: int = Field(description="Number of slices that trained together.")
    started: Time = Field(description="Time at which the world was formed.")
    ended: Time | None = Field(default=None, description="Time at which it ended. Unset: it has not ended.")
    first_step: int | None = Field(default=None, description="Step from which it resumed. Unset: it never restored.")
    tier: Tier | None = Field(
        default=None,
        description="Storage tier of that step: `durable` storage, `ram` of its hosts, or the `backup` store. "
        "Unset: it started from scratch, or never restored.",
    )
    shadow: bool = Field(
        default=False, description="Whether it was a hot standby world, whose processes were ready before."
    )
    last_step: int | None = Field(default=None, description="Newest step that it finished. Unset: it never restored.")
    cause: Cause | None = Field(default=None, description="Cause of its end. Unset: it has not ended.")
    restarted: bool = Field(
        default=False, description="Whether its unplanned end made the job restart, which `restarts.total` counts."
    )
    recovery_seconds: float | None = Field(
        default=None, description="Seconds from the end of the previous world to its first new step."
    )
    lost_steps: int | None = Field(default=None, description="Steps of earlier worlds that it trained again.")
    seconds: dict[str, float] = Field(
        default={}, max_length=16, description="Seconds of its life by activity. Empty for a replica's world."
    )
