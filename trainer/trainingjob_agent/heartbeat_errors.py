"""JAX's error messages about missing heartbeats: the only place where JAX names a lost process.

Three sources report it. The coordination service, which runs in process 0, reports on the other processes. Another
process reports on that service. A process at a barrier that cannot complete reports on the process that it waits for.
"""

import re

from trainingjob_api.world import MAX_MEMBERS

LOST_TASKS = re.compile(r"\(stopped sending heartbeats\):\n((?:\d+\n)+)")
"""The service lists the processes without heartbeats, one a line, before it ends all processes."""
LOST_SERVICE = re.compile(r"DEADLINE_EXCEEDED.*\n+RPC: /xla\.coordination\.CoordinationService/Heartbeat")
"""A process has received no answer from the service."""
LOST_AT_BARRIER = re.compile(r"\bTask (\d+) heartbeat timeout")
"""The error of a barrier names a process that will never arrive."""
MAX_DIGITS = len(str(MAX_MEMBERS))
"""Maximum digits of a process number."""
GLOO_TIMEOUT = "Gloo context initialization failed: DEADLINE_EXCEEDED"
"""gloo waited 30 s for a connection in vain. It names a process, but that process may only wait for another one."""


def find_lost_processes(text: str) -> tuple[int, ...]:
    """Return the processes whose heartbeats JAX reports as missing in a log or an error."""
    if LOST_SERVICE.search(text):
        return (0,)
    numbers = [
        *LOST_AT_BARRIER.findall(text),
        *(number for block in LOST_TASKS.findall(text) for number in block.split()),
    ]
    return tuple(sorted({int(number) for number in numbers if len(number) <= MAX_DIGITS}))


def expects_heartbeat_report(text: str) -> bool:
    """Return whether JAX may name a lost process soon: its heartbeat timeout is 30 s, like that of gloo."""
    return GLOO_TIMEOUT in text
