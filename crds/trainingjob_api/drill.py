"""Drills: faults that a job's owner requests, to measure the recovery.

The request is an annotation on the job, so the right to edit the job suffices. It contains the job's UID and a drill
id. So a job of the same name, or a copy of the manifest, is not affected by it.
"""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Message, Open, renamed
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.world import Count, Uid

DRILL_ANNOTATION = "trainingjob.dev/drill"

DrillId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$", max_length=40)]
DrillSeconds = Annotated[int, Field(ge=1, le=3600)]


class DrillRequest(Message):
    """Content of the drill annotation."""

    id: DrillId
    job_uid: Uid
    kind: DrillKind
    slice: Count | None = None
    """None: the last slice of the world."""
    host: Count | None = None
    """None: the last host of the slice."""
    seconds: DrillSeconds = DRILL_SECONDS
    """Duration of a temporary fault in seconds."""
    requested: Annotated[str, Field(max_length=32, validation_alias=renamed("requested", "asked"))]
    """Time of the request."""


class Drill(Open):
    """The fault that an agent is to inject on its own host, once."""

    id: DrillId
    kind: DrillKind
    seconds: DrillSeconds = DRILL_SECONDS
