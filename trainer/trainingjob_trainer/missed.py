"""Which process JAX heard nothing of, in its own words: there is no other place where it says so.

Three who speak: the coordination service, which process 0 runs, of the others; one of the others, of that service; and
whoever waited at a meeting that cannot take place any more.
"""

import re

from trainingjob_api.world import MAX_MEMBERS

OTHERS = re.compile(r"\(stopped sending heartbeats\):\n((?:\d+\n)+)")
"""Where the service names the processes that it misses, one a line, before it ends all."""
SERVICE = re.compile(r"DEADLINE_EXCEEDED.*\n+RPC: /xla\.coordination\.CoordinationService/Heartbeat")
"""Where a process has had no answer from the service."""
AT_A_MEETING = re.compile(r"\bTask (\d+) heartbeat timeout")
"""Where an error of a meeting names who will never come."""
DIGITS = len(str(MAX_MEMBERS))
"""What has more of them is no process."""
LATE = "Gloo context initialization failed: DEADLINE_EXCEEDED"
"""Where gloo gave up on one who was to connect, after 30 s: it says of whom, but that one may only wait for another."""


def find_missed(text: str) -> tuple[int, ...]:
    """Return the processes that JAX says it heard nothing of, in a log or in an error."""
    if SERVICE.search(text):
        return (0,)
    named = [*AT_A_MEETING.findall(text), *(number for block in OTHERS.findall(text) for number in block.split())]
    return tuple(sorted({int(number) for number in named if len(number) <= DIGITS}))


def is_about_to_tell(text: str) -> bool:
    """Return whether JAX, which gives up hearing of a process after 30 s as well, may name it soon after an error."""
    return LATE in text
