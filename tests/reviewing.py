"""Reviews that are examined in the test's own process, by a check of the test's choice."""

from trainingjob_operator.shell.admission import Examine
from trainingjob_operator.shell.examining import Check, Examined, examine


def examine_here(check: Check) -> Examine:
    """Return what examines reviews as the webhook's process does."""

    async def run(body: bytes, peer: str) -> Examined:
        del peer
        return examine(body, check)

    return run
