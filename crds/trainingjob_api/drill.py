"""Drills: faults that a job's owner asks for, to see what they cost.

The request is an annotation on the job, so it needs no more than the right to edit it. It names the job by its UID and
has a number of its own: a job of the same name, or a copy of the manifest, is never struck by it.
"""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Open
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.world import Count, Uid

DRILL_ANNOTATION = "trainingjob.dev/drill"

DrillId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$", max_length=40)]
DrillSeconds = Annotated[int, Field(ge=1, le=3600)]


class DrillRequest(Open):
    """What the annotation says."""

    id: DrillId
    job_uid: Uid
    kind: DrillKind
    slice: Count | None = None
    """None: the last of the world."""
    host: Count | None = None
    """None: the last of the slice."""
    seconds: DrillSeconds = DRILL_SECONDS
    """How long what passes lasts."""
    asked: Annotated[str, Field(max_length=32)]


class Drill(Open):
    """What an agent is asked to do to its own host, once."""

    id: DrillId
    kind: DrillKind
    seconds: DrillSeconds = DRILL_SECONDS
