"""Repeated requests to an object store, with a budget of seconds: most failures of a store pass."""

import errno
import logging
import random
import time
from collections.abc import Callable

LOG = logging.getLogger(__name__)
BUDGET_SECONDS = 120.0
"""Seconds after which a request that keeps failing counts as failed. Callers above retry a save or a restore."""
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 8.0
MAX_REFUSALS = 3
"""Attempts with new credentials: a token that expires is replaced, and missing rights stay missing."""


class TransientError(OSError):
    """A request failed and may succeed later. Its `errno` is that of the final error."""


class WebPageError(OSError):
    """Something else than an object store has answered, such as the login page of a proxy. No repetition helps."""


class ExpiredCredentialsError(OSError):
    """The store refuses the credentials of a request. Its `errno` is that of the final error."""


def throttled(message: str) -> TransientError:
    """Return the error of a store that accepts no requests at the moment."""
    return TransientError(errno.EAGAIN, message)


def call_with_retries[T](operation: Callable[[], T], refresh: Callable[[], None], seconds: float | None = None) -> T:
    """Return the result of a request. It is repeated with growing random delays until the budget is spent.

    `refresh` replaces the credentials. `seconds` None: `BUDGET_SECONDS`.

    Raises:
        OSError: the request failed until the budget was spent, or for a reason that a retry does not change.
    """
    deadline = time.monotonic() + (BUDGET_SECONDS if seconds is None else seconds)
    delay, refusals = FIRST_DELAY_SECONDS, 0
    while True:
        try:
            return operation()
        except ExpiredCredentialsError:
            refusals += 1
            if refusals == MAX_REFUSALS:
                raise
            refresh()
        except TransientError as error:
            if time.monotonic() + delay > deadline:
                raise
            LOG.debug("a request is repeated error=%s", error)
        time.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  # hosts must not repeat in step
        delay = min(2 * delay, MAX_DELAY_SECONDS)
