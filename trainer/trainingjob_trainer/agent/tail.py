"""The end of a child's log, and the part of it that says why it died."""

import re

from trainingjob_api.protocol import LOG_EXCERPT_BYTES

KEPT_BYTES = 64 * 1024
"""More than any native stack trace, so that what stands above one is still there."""
_FATAL = re.compile(rb"^(F\d{4} \d\d:\d\d|terminate called|Fatal Python error:)", re.MULTILINE)
"""How native libraries, C++ and Python begin their last words. Stack traces and lists of modules follow."""


class Tail:
    """The last bytes written to it, at most `limit`."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()

    def write(self, chunk: bytes) -> None:
        """Append, and forget what is too old."""
        self._kept += chunk
        if len(self._kept) > 2 * self._limit:  # not each time: a log is many small writes
            del self._kept[: -self._limit]

    def text(self) -> str:
        """Return all that is kept."""
        return self._kept[-self._limit :].decode(errors="ignore")


def excerpt(log: str, limit: int = LOG_EXCERPT_BYTES) -> str:
    """Return the part of a log that says most about its program's end, at most `limit` bytes.

    That is the beginning of native last words where there are any, else the last whole lines: there ends a traceback.
    """
    text = log.strip().encode()
    if fatal := _FATAL.search(text):
        return text[fatal.start() :][:limit].decode(errors="ignore").strip()
    kept = text[-limit:]
    if len(text) > limit:
        _, newline, rest = kept.partition(b"\n")
        kept = rest if newline else kept
    return kept.decode(errors="ignore").strip()
