"""What the operator has heard from a job's hosts, and how long ago.

Every age is seconds on the operator's own monotonic clock, counted from receipt: no clock of a pod is ever believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.protocol import HostReport


@dataclass(frozen=True)
class News:
    """The newest report of one pod."""

    report: HostReport
    age: float
    """Since it came."""
    still: float
    """Since its generation, phase, step, what it reads and writes, or its readiness last changed.

    Times in which no host of the job was heard of do not count."""
    idle: float = 0.0
    """Since that last changed, or its process used CPU time that is worth telling. 0: nobody knows."""


@dataclass(frozen=True)
class Hearing:
    """All that was heard of one job, by the UIDs of its pods."""

    news: Mapping[str, News] = field(default_factory=dict)
    listening: float = 0.0
    """Since the first report after a time in which no host was heard of: then it was the operator that was away."""
    announced: float = 0.0
    """Since this operator first announced the newest generation. 0: it announced none."""
    burned: int = 0
    """Highest generation that was claimed without a confirmation. It is never used again."""
