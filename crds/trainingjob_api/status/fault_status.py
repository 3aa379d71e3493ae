"""The faults in the status: bad nodes, a straggler, and requested faults."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainingjob_api.base import Message, Open, Text, Time, renamed
from trainingjob_api.drill import DrillId, DrillSeconds
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.world import Tier


class NodeFaults(Open):
    """A node that worlds ended for, while the other nodes were well."""

    node: Annotated[str, Field(max_length=253)] = Field(
        description="Name of the node, as `kubectl get nodes` lists it."
    )
    faults: int = Field(description="Number of worlds that this node alone ended. From 2 on it is a bad node.")
    until: Time = Field(description="Time at which the operator discards this record.")
    why: Text = Field(default="", description="Cause of the last of these ends.")
    probation: bool = Field(
        default=False, description="Whether `status.probation` has the node, for programs that do not read that list."
    )


class NodeProbation(Open):
    """A node that the job uses last: it failed lately, or was repaired lately, or is away after a fault."""

    node: Annotated[str, Field(max_length=253)] = Field(
        description="Name of the node, as `kubectl get nodes` lists it."
    )
    since: Time = Field(description="Time of the fault, of the departure or of the return, whichever came last.")
    away: bool = Field(
        default=False,
        description="Whether the node is gone, not ready, cordoned or under a signal. Its probation begins when it "
        "returns.",
    )
    why: Annotated[str, Field(max_length=256)] = Field(default="", description="Cause of the last fault.")


_FORMER_STRAGGLER_REASONS = {"ComesLate": "SlowStep", "StandsStill": "CpuStarved"}
"""Reasons as an operator before 0.1 writes them. The API server takes them too: it may lead during an upgrade."""


def _read_straggler_reason(value: object) -> object:
    return _FORMER_STRAGGLER_REASONS.get(value, value) if isinstance(value, str) else value


class Straggler(Open):
    """A straggler: the host that the rest of the world waits for."""

    slice: int = Field(description="Index of the slice to which the host belongs.")
    host: int = Field(description="Index of the host in that slice.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Kubernetes node of the host.")
    reason: Annotated[Literal["SlowStep", "CpuStarved"], BeforeValidator(_read_straggler_reason)] = Field(
        default="SlowStep",
        json_schema_extra={"enum": ["SlowStep", "CpuStarved", *_FORMER_STRAGGLER_REASONS]},
        description="`SlowStep`: all other hosts wait for it in every step. `CpuStarved`: its trainer is not scheduled "
        "for much of the time, unlike the others.",
    )
    ratio: float = Field(description="Share of the time that the others wait longer, or that it is scheduled less.")
    since: Time = Field(description="Time at which it was first found slow.")


class DrillStatus(Message):
    """A requested fault. The operator records it before the injection, and injects it at most once."""

    id: DrillId = Field(description="Identifier of the request.")
    kind: DrillKind = Field(description="Kind of the fault to inject.")
    state: Literal["ordered", "injected", "recovered", "withstood", "refused", "over"] = Field(
        description="`ordered`: hosts have the order. `injected`: the fault is in effect. `recovered`: the next "
        "world trains. `withstood`: the same world continues. `refused`: no fault was injected. "
        "`over`: the drill has ended without a result."
    )
    requested: Time = Field(
        validation_alias=renamed("requested", "asked"), description="Time at which the drill was requested."
    )
    injected: Time | None = Field(default=None, description="Time at which the injection was confirmed.")
    generation: int | None = Field(default=None, description="Generation of the affected world.")
    slice: int | None = Field(default=None, description="Index of the affected slice.")
    host: int | None = Field(default=None, description="Index of the affected host in it. Unset: all hosts.")
    seconds: DrillSeconds = Field(default=DRILL_SECONDS, description="Duration of a temporary fault in seconds.")
    message: Text = Field(default="", description="Result for people.")
    cause: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Cause that the operator found for the end of the world."
    )
    recovery_seconds: float | None = Field(
        default=None, description="Seconds from the end of the affected world to the first new step of the next one."
    )
    phases: dict[str, float] = Field(
        default={},
        max_length=16,
        description="Seconds of the detection and of the recovery, by activity.",
    )
    lost_steps: int | None = Field(default=None, description="Steps that were trained again.")
    tier: Tier | None = Field(default=None, description="Storage tier from which the next world resumed.")
