"""Wall clock synchronized with the API server.

Times of pods and events, and times in a status, thus come from one clock, even if the machine's clock is wrong. Between
two answers the machine's monotonic clock advances the time, so changes of the machine's wall clock have no effect.

The monotonic clock also measures by how much the server's clock was changed. The operator can therefore shift the times
in a status: an hour that did not pass counts neither as goodput time nor towards a timeout.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from trainingjob_operator.shell.logging_setup import Log

TOLERANCE = timedelta(seconds=5)
"""Offsets up to this are ignored: a `Date` header has a resolution of one second, and arrives with some delay."""
MIN_LOGGED_OFFSET = timedelta(minutes=1)

log = Log("clock")


class ServerClock:
    """Wall clock that the API server's answers set. Before the first answer it shows the machine's time."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        local_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.total_adjustment = 0.0
        """Total adjustment in seconds by the API server's answers; positive: forward."""
        self._monotonic = monotonic
        self._set(local_clock())

    def now(self) -> datetime:
        """Return the current time."""
        return self._reference_time + timedelta(seconds=self._monotonic() - self._reference_monotonic)

    def synchronize(self, date: str) -> None:
        """Adjust the clock to the `Date` header of a new answer; ignore an invalid date."""
        try:
            server_time = parsedate_to_datetime(date)
        except ValueError:
            return
        if server_time.tzinfo is None:
            return
        offset = self.now() - server_time
        if abs(offset) > TOLERANCE:
            self.total_adjustment -= offset.total_seconds()
            if abs(offset) > MIN_LOGGED_OFFSET:
                log.warning(
                    "the local clock differs from the API server's clock; using the API server's",
                    seconds=offset.total_seconds(),
                )
            self._set(server_time)

    def _set(self, now: datetime) -> None:
        self._reference_time, self._reference_monotonic = now, self._monotonic()
