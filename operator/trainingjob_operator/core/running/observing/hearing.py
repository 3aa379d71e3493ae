"""Heartbeats: the newest reports of a job's hosts and their ages.

Every age is in seconds of the operator's monotonic clock, counted from receipt. Pod clocks are never used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.protocol import HostReport


@dataclass(frozen=True)
class News:
    """The newest report of one pod."""

    report: HostReport
    age: float
    """Seconds since receipt."""
    still: float
    """Seconds since its generation, phase, step, file I/O or readiness last changed.

    Periods in which no host of the job reported do not count.
    """
    idle: float = 0.0
    """Seconds since that state last changed or the process used a significant amount of CPU time. 0: unknown."""


@dataclass(frozen=True)
class Hearing:
    """The heartbeat state of one job."""

    news: Mapping[str, News] = field(default_factory=dict)
    listening: float = 0.0
    """Seconds since the first report after a period without any report. Such a period counts as an operator outage."""
    announced: float = 0.0
    """Seconds since this operator first published the newest generation. 0: it has published none."""
    burned: int = 0
    """Highest generation whose claim was sent but not confirmed. It is never used again."""
