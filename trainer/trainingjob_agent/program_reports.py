"""Steps of a program: from its reports or its log, into the events that the rules of the agent know."""

import math
import re
from collections import deque
from statistics import median

from trainingjob_agent.trainer_protocol import AgentEvent, ProgramReport
from trainingjob_api.line_pattern import MAX_SEARCHED
from trainingjob_api.objective_metrics import MAX_METRIC
from trainingjob_api.protocol import MAX_REPORTED, Progress

MIN_TIMED, MAX_TIMED = 5, 100
"""Number of steps that a typical time needs, and of those that count."""


class ProgramReports:
    """Turns reports into events. `saved` is the newest step that is known to be saved before this world."""

    def __init__(self, saved: int = 0) -> None:
        self._saved = saved
        self._last: tuple[int, float] | None = None  # None: no step yet
        self._seconds: deque[float] = deque(maxlen=MAX_TIMED)

    def translate(self, report: ProgramReport, now: float) -> AgentEvent:
        """Return the event of a report at a time in seconds of a monotonic clock.

        The program resumed from the step before its first one. Only a step that was reported as saved counts as
        restored: a log may name only every hundredth step.
        """
        restored, progress = None, None
        if report.step is not None:
            if self._last is None:
                restored = min(self._saved, max(report.step - 1, 0))
            progress = self._measure(report.step, report.loss, now)
        return AgentEvent(progress=progress, restored=restored, committed=report.saved)

    def _measure(self, step: int, loss: float | None, now: float) -> Progress:
        """Return the progress of a step, with the seconds of a step since the one before it."""
        seconds = None
        if self._last is not None and step > self._last[0]:
            seconds = (now - self._last[1]) / (step - self._last[0])
            self._seconds.append(seconds)
        if self._last is None or step != self._last[0]:
            self._last = step, now
        typical = median(self._seconds) if len(self._seconds) >= MIN_TIMED else None
        return Progress(step=step, loss=loss, step_seconds=seconds, typical_seconds=typical)


def read_line(pattern: re.Pattern[str], line: bytes) -> ProgramReport | None:  # None: the line reports nothing
    """Return the report in a line of a log. A number that is none, or not finite, is left out."""
    match = pattern.search(line[: 4 * MAX_SEARCHED].decode(errors="replace")[:MAX_SEARCHED])
    if match is None:
        return None
    groups = match.groupdict()
    step, saved = _read_count(groups.get("step")), _read_count(groups.get("saved"))
    if step is None and saved is None:
        return None
    return ProgramReport(step=step, loss=_read_metric(groups.get("loss")), saved=saved)


def _read_count(text: str | None) -> int | None:
    digits = (text or "").replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(MAX_REPORTED)):
        return None
    return int(digits) if int(digits) <= MAX_REPORTED else None


def _read_metric(text: str | None) -> float | None:
    try:
        value = float((text or "").rstrip(",;"))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= MAX_METRIC else None
