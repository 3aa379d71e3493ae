"""Thread stacks of a trainer, from the dump that it writes into its log on a signal.

`faulthandler` writes the dump inside the signal handler. So a process that never runs Python code again writes it too.
The dump has no end marker, and other log lines may precede and follow it.
"""

import re

from trainingjob_api.protocol import LOG_EXCERPT_BYTES

_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*$")
_LINE = re.compile(r'^  (File ".*", line (\d+|\?\?\?) in|<|\.\.\.)')


def find_stacks(log: str) -> str:
    """Return the thread stacks of the dump in a log, the main thread first; empty: no dump."""
    threads: list[list[str]] = []
    is_inside = False
    for line in log.splitlines():
        if _HEAD.match(line):
            threads.append([line])
            is_inside = True
        elif is_inside and _LINE.match(line):
            threads[-1].append(line)
        else:
            is_inside = is_inside and not line
    # The main thread is the oldest, and the dump lists it last.
    return "\n\n".join("\n".join(lines) for lines in reversed(threads))


def truncate_stacks(stacks: str, limit: int = LOG_EXCERPT_BYTES) -> str:
    """Return the first lines of the stacks, up to the size of an excerpt."""
    kept = stacks.encode()[: limit + 1]
    if len(kept) > limit:
        kept = kept.rpartition(b"\n")[0] or kept[:limit]
    return kept.decode(errors="ignore").strip()
