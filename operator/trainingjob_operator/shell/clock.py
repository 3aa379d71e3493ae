"""The time of day as the API server has it.

All times that an operator reads of pods and events, and all that it writes into a status, are then of one clock,
however wrong that of the machine is on which it happens to run. Between two answers the machine's monotonic clock
carries on, so that nothing happens when somebody sets the machine's time. When somebody sets the server's, the
monotonic clock tells by how much, so that the hour that did not pass is in no ledger and ends no job.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from trainingjob_operator.shell.logs import Log

TOLERANCE = timedelta(seconds=5)
"""An answer's date has whole seconds, and it was on its way: the clock is set only where it is further away."""
WORTH_TELLING = timedelta(minutes=1)

log = Log("clock")


class ServerClock:
    """A clock that the answers of the API server set; before the first of them it is the machine's own."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        machine: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Begin with the time of the machine."""
        self.set_by = 0.0
        """By how many seconds answers have set it, all in all: on if positive."""
        self._monotonic = monotonic
        self._set(machine())

    def now(self) -> datetime:
        """Return the time of day."""
        return self._then + timedelta(seconds=self._monotonic() - self._at)

    def hear(self, date: str) -> None:
        """Go by the `Date` of an answer that has just come; what is no date is passed over."""
        try:
            told = parsedate_to_datetime(date)
        except ValueError:
            return
        if told.tzinfo is None:
            return
        off = self.now() - told
        if abs(off) > TOLERANCE:
            self.set_by -= off.total_seconds()
            if abs(off) > WORTH_TELLING:
                log.warning("this clock and the API server's differ: the server's counts", seconds=off.total_seconds())
            self._set(told)

    def _set(self, now: datetime) -> None:
        self._then, self._at = now, self._monotonic()
