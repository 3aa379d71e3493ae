"""The checkpoint section: saves, retention, snapshots, copies and initial parameters."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    AbsolutePath,
    Duration,
    ShortName,
    Strict,
)


class Save(Strict):
    """When to save."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        default=500, description="Steps between two saves. The last step and every planned change save too."
    )
    every: Duration | None = Field(
        default=None,
        description="Longest time without a save beside that, however long steps take. A save that takes longer is "
        "followed by the next one at once. Unset: steps alone decide.",
    )


class KeepBest(Strict):
    """The steps with the lowest loss on a held-out text."""

    evaluation: ShortName = Field(description="Name of the evaluation whose loss decides.")
    count: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="How many of the steps with the lowest loss to keep."
    )


class Keep(Strict):
    """Checkpoint retention."""

    last: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="How many of the newest steps to keep.")
    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="Keep every step that is a multiple of this for good. Unset: none."
    )
    best: KeepBest | None = Field(
        default=None,
        description="Keep the best steps too. A step whose evaluation makes it one of them is saved right after it. "
        "Unset: evaluations decide nothing.",
    )


class Snapshots(Strict):
    """Snapshots of the state in host memory. They survive the program, but not its pod."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None,
        description="Steps between two snapshots: the most that are lost with slices whose shards others hold too. "
        "Unset: by the plan's estimate as few as take 0.1 % of the time, or up to 1 % where checkpoints are close. If "
        "a host measures that they take more than 1 %, twice as many from then on, and so forth.",
    )


class Backup(Strict):
    """Copies of checkpoints on a second store, which is slower and survives a loss of the first."""

    uri: AbsolutePath = Field(
        description="A folder of the job's own on another volume of `runtime.volumes`, at least two levels deep. All "
        "hosts must see the same files there."
    )
    every: Duration = Field(
        default="1h",
        description="Time between the beginnings of two copies. The first step that is saved after it is copied; so is "
        "the first one of each world, and the last one of all.",
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="How many of the newest copies stay when newer ones are made."
    )


class InitializeFrom(Strict):
    """Initial parameters from another job's checkpoint, for a job without own checkpoints."""

    uri: AbsolutePath = Field(
        description="The folder that was `checkpoint.uri` of the job that saved them. It is only read."
    )
    step: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="The saved step to take. Unset: the newest one that proves whole."
    )
    allow_partial: bool = Field(
        default=False,
        description="Take the parameters that both models have, and begin with random ones for those that the saved "
        "step lacks. Those of another shape are refused in any case. Without it the models must have the same ones.",
    )


class Restore(Strict):
    """How a world reads a saved step from storage."""

    broadcast_from: Literal["oneReplica"] = Field(
        description="Hosts that read for all: `oneReplica` reads once along the `data` axis and broadcasts over the "
        "network. This relieves the storage when many hosts start at once."
    )


class Checkpoint(Strict):
    """Checkpoint storage. All hosts must see the same files there."""

    uri: AbsolutePath = Field(
        description="A folder on shared storage that `runtime.volumes` mounts, at least two levels deep."
    )
    save: Save = Field(default=Save(), description="When a checkpoint is written.")
    keep: Keep = Field(default=Keep(), description="Which checkpoints stay when newer ones are written.")
    fail_after: Duration = Field(
        default="1h",
        description="How long saves may fail, one after the other, before the job does. Until then it trains on, tries "
        "again, and the condition Degraded says so.",
    )
    snapshots: Snapshots | None = Field(
        default=None,
        description="Snapshots in the memory of the hosts, which a smaller world goes on from. Unset: none are taken.",
    )
    restore: Restore | None = Field(
        default=None,
        description="How a world reads a saved step from storage. Unset: each host reads its own part.",
    )
    backup: Backup | None = Field(
        default=None,
        description="Copies of saved steps on a second store, which training goes on from where `uri` has lost them. "
        "Unset: none are made.",
    )
    initialize_from: InitializeFrom | None = Field(
        default=None,
        description="Begin with the parameters of another job; the optimizer, the data and the steps begin anew. Once "
        "this job has saved a step, that one counts. Unset: begin with random ones.",
    )
    takeover: bool = Field(
        default=False,
        description="Go on from the checkpoints of another job in this folder, and own the folder from now on. "
        "Without it a folder that another job owns is refused.",
    )
