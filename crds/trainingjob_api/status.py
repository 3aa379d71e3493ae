"""The status of a TrainingJob: what the operator tells people, and what it must remember.

`world`, `lineage`, `restarts`, `attempts`, `goodput`, `startTime`, `completionTime` and the conditions Succeeded and
Failed are memory: the operator reads them back. All the rest is for people; nothing decides by it.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.world import Span

Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class Condition(Strict):
    """A condition as every Kubernetes object has them."""

    type: Annotated[str, Field(max_length=64)] = Field(
        description="Valid, Queued, Running, Degraded, Suspended, Succeeded or Failed."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Why, in one CamelCase word.")
    message: Annotated[str, Field(max_length=8192)] = Field(default="", description="Why, in words.")
    observed_generation: int = Field(default=0, description="The spec's generation that this speaks of.")
    last_transition_time: Time = Field(description="When `status` last changed.")


class SizeStatus(Strict):
    """The plan at one number of slices."""

    slices: int = Field(description="Number of slices.")
    devices: int = Field(description="Number of devices.")
    valid: bool = Field(description="Whether the job may train at this size.")
    why: Text = Field(default="", description="Why it may not.")
    mesh: Text = Field(default="", description="The mesh, DCN and ICI degrees.")
    rows_per_shard: int = Field(default=0, description="Rows of a microbatch on each batch shard.")
    accumulation: int = Field(default=0, description="Microsteps a step.")
    padding_rows: int = Field(default=0, description="Rows of weight zero a step.")
    memory_bytes: int = Field(default=0, description="Estimated bytes a device.")


class PlanStatus(Strict):
    """What the spec comes to."""

    parameters: int = Field(description="Number of parameters of the model.")
    tokens_per_step: int = Field(description="Tokens an optimizer step.")
    sizes: tuple[SizeStatus, ...] = Field(default=(), max_length=256, description="The plan of every size.")


class WorldStatus(Strict):
    """The committed world: no agent hears of a generation that is not written here."""

    generation: int = Field(description="Its number.")
    slices: tuple[int, ...] = Field(default=(), max_length=256, description="The slices in it.")
    coordinator: Annotated[str, Field(max_length=300)] = Field(description="Address of JAX's coordination service.")
    members: Annotated[str, Field(max_length=64)] = Field(description="Hash of its members.")
    pods: tuple[Annotated[str, Field(max_length=320)], ...] = Field(
        default=(), max_length=4096, description="Its pods, `name/uid`, in the order of their process ids."
    )
    since: Time = Field(description="When it was formed.")
    why: Text = Field(default="", description="Why it was formed.")


class ProgressStatus(Strict):
    """How far training is."""

    step: int = Field(description="Optimizer steps done.")
    of: int = Field(description="Optimizer steps in all.")
    percent: float = Field(default=0.0, description="Share done, in percent.")
    loss: float | None = Field(default=None, description="Newest training loss.")
    grad_norm: float | None = Field(default=None, description="Newest global norm of the gradient.")
    learning_rate: float | None = Field(default=None, description="Newest learning rate.")
    tokens_per_second: float | None = Field(default=None, description="Tokens a second over all devices.")
    step_seconds: float | None = Field(default=None, description="Seconds a step.")
    eta_seconds: int | None = Field(default=None, description="Estimated seconds to the last step.")
    evaluations: dict[str, float] = Field(default={}, max_length=8, description="Newest held-out loss by name.")


class CheckpointStatus(Strict):
    """The newest state that survives everything."""

    step: int = Field(description="Newest step that is saved, hashed and announced.")
    time: Time = Field(description="When the operator heard of it.")
    tier: Literal["durable"] = Field(default="durable", description="Where it is.")


class Restarts(Strict):
    """How often training began again after a world had ended without being asked."""

    total: int = Field(default=0, description="All of them.")
    counted: int = Field(default=0, description="Failures of the program: these count against `maxRestarts`.")


class Goodput(Strict):
    """Where the time of the job's life went."""

    ratio: float = Field(default=0.0, description="Training seconds by all seconds since the pods were asked for.")
    seconds: dict[str, float] = Field(default={}, max_length=16, description="Seconds by what was going on.")
    current: Annotated[str, Field(max_length=32)] = Field(
        default="", description="What is going on now: it gets the seconds from here on."
    )


class Cause(Strict):
    """What ended a world."""

    reason: Annotated[str, Field(max_length=64)] = Field(description="In one CamelCase word.")
    message: Text = Field(default="", description="In words.")
    slice: int | None = Field(default=None, description="The slice it began on.")
    host: int | None = Field(default=None, description="The host it began on.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="That host's node.")
    step: int | None = Field(default=None, description="The step that failed. Unset: none was running, or unknown.")
    exit_code: int | None = Field(default=None, description="Exit code of the program there.")
    log: Annotated[str, Field(max_length=2048)] = Field(default="", description="Last lines of its log.")


class Attempt(Strict):
    """One world's life."""

    generation: int = Field(description="Its number.")
    slices: int = Field(description="Number of slices in it.")
    started: Time = Field(description="When it was formed.")
    ended: Time | None = Field(default=None, description="When it ended. Unset: it has not.")
    first_step: int | None = Field(default=None, description="Step that it started from. Unset: it never restored.")
    last_step: int | None = Field(default=None, description="Last step that it finished.")
    cause: Cause | None = Field(default=None, description="What ended it.")
    recovery_seconds: float | None = Field(
        default=None, description="From the end of the world before it to its own first new step."
    )
    lost_steps: int | None = Field(default=None, description="Steps of the world before it that it had to do again.")


class Display(Strict):
    """Single values for the columns of `kubectl get`."""

    slices: Annotated[str, Field(max_length=16)] = Field(default="", description="Training and wanted: `3/4`.")
    step: Annotated[str, Field(max_length=32)] = Field(default="", description="Done and in all: `1200/5000`.")
    loss: Annotated[str, Field(max_length=16)] = Field(default="", description="Newest loss.")
    goodput: Annotated[str, Field(max_length=16)] = Field(default="", description="In percent.")
    mesh: Text = Field(default="", description="The current mesh.")
    tokens_per_second: Annotated[str, Field(max_length=16)] = Field(default="", description="With a unit.")
    eta: Annotated[str, Field(max_length=32)] = Field(default="", description="Time left.")
    checkpoint: Annotated[str, Field(max_length=32)] = Field(default="", description="Newest durable step.")
    reason: Annotated[str, Field(max_length=128)] = Field(default="", description="Why the status is what it is.")


class TrainingJobStatus(Strict):
    """The observed state of a TrainingJob."""

    observed_generation: int = Field(default=0, description="The spec's generation that was last acted on.")
    phase: Annotated[str, Field(max_length=32)] = Field(default="", description="For display only: nothing reads it.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Valid, Queued, Running, Degraded, Suspended, Succeeded and Failed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    problems: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="What is wrong with the spec, all at once."
    )
    plan: PlanStatus | None = Field(default=None, description="What the spec comes to, for every size.")
    world: WorldStatus | None = Field(default=None, description="The committed world. Unset: none was formed yet.")
    lineage: tuple[Span, ...] = Field(
        default=(), max_length=128, description="Which generation trained which steps of the committed history."
    )
    progress: ProgressStatus | None = Field(default=None, description="How far training is.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest durable checkpoint.")
    restarts: Restarts = Field(default=Restarts(), description="How often training began again unasked.")
    goodput: Goodput = Field(default=Goodput(), description="Where the time went.")
    attempts: tuple[Attempt, ...] = Field(default=(), max_length=20, description="The last 20 worlds, oldest first.")
    display: Display = Field(default=Display(), description="Single values for the columns of `kubectl get`.")
    start_time: Time | None = Field(default=None, description="When the pods were first asked for.")
    running_seconds: float = Field(default=0.0, description="Seconds not suspended, against the deadline.")
    completion_time: Time | None = Field(default=None, description="When the job ended.")
