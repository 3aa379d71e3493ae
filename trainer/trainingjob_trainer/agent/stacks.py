"""Where a trainer's threads stand: the dump that it writes into its log when it is asked by signal.

`faulthandler` writes it from within the signal handler, so it comes also from a process that will never again run a
line of Python. Nothing marks its end, and other lines of the log may stand before and behind it.
"""

import re

from trainingjob_api.protocol import LOG_EXCERPT_BYTES

_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*$")
_LINE = re.compile(r'^  (File ".*", line (\d+|\?\?\?) in|<|\.\.\.)')


def find_stacks(log: str) -> str:
    """Return the threads of the dump in a piece of a log, the main one first; empty: there is none."""
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
    # The oldest thread comes last: that is the main one.
    return "\n\n".join("\n".join(lines) for lines in reversed(threads))


def cut_stacks(stacks: str, limit: int = LOG_EXCERPT_BYTES) -> str:
    """Return as many lines of the threads, from the main one on, as an excerpt may have."""
    kept = stacks.encode()[: limit + 1]
    if len(kept) > limit:
        kept = kept.rpartition(b"\n")[0] or kept[:limit]
    return kept.decode(errors="ignore").strip()
