"""Heartbeats: the newest reports of a job's hosts and their ages.

Every age is in seconds of the operator's monotonic clock, counted from receipt. Pod clocks are never used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.protocol import HostReport


@dataclass(frozen=True)
class LatestReport:
    """The newest report of one pod."""

    report: HostReport
    report_age: float
    """Seconds since receipt."""
    stalled_for: float
    """Seconds since its generation, phase, step, file I/O or readiness last changed.

    Periods in which no host of the job reported do not count.
    """
    idle_for: float = 0.0
    """Seconds since that state last changed or the process used a significant amount of CPU time. 0: unknown."""


@dataclass(frozen=True)
class HeartbeatState:
    """The heartbeat state of one job."""

    latest_reports: Mapping[str, LatestReport] = field(default_factory=dict)
    listening_seconds: float = 0.0
    """Seconds since the first report after a period without any report. Such a period counts as an operator outage."""
    seconds_since_publish: float = 0.0
    """Seconds since this operator first published the newest generation. 0: it has published none."""
    max_unconfirmed_generation: int = 0
    """Highest generation whose claim was sent but not confirmed. It is never used again."""
