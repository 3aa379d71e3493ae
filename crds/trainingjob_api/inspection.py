"""Inspections: traces or thread stacks of a running job, which its owner requests.

The request is an annotation on the job, so the right to edit the job suffices. It contains the job's UID and an id. So
a job of the same name, or a copy of the manifest, is not affected by it. The results are in the logs of the pods.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Open
from trainingjob_api.spec.profiling import TracedHosts, TraceSteps
from trainingjob_api.world import Uid

INSPECTION_ANNOTATION = "trainingjob.dev/inspect"

InspectionId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$", max_length=40)]


class InspectionKind(StrEnum):
    """What a host shows."""

    TRACE = "trace"
    STACKS = "stacks"


class Inspection(Open):
    """The inspection of one host, once."""

    id: InspectionId
    kind: InspectionKind
    steps: TraceSteps = 3
    """Steps of a trace."""


class InspectionRequest(Inspection):
    """Content of the inspection annotation."""

    job_uid: Uid
    hosts: TracedHosts = "first"
    requested: Annotated[str, Field(max_length=32)]
    """Time of the request."""


TRACE_WRITTEN = "trace written name={name} steps={steps} folder={folder}"
"""The line of a host's log after a trace was written. `folder` is the log directory for XProf."""
TRACE_NOT_WRITTEN = "trace not written name={name} error={error}"
STACKS = "stacks id={id}\n{text}\nend of stacks id={id}"
"""The lines of a host's log with the thread stacks of its trainer."""


def trace_name(number: str) -> str:
    """Return the name of the trace of an inspection, by its id."""
    return f"request-{number}"
