"""The end of a child's log, and the excerpt of it that explains its exit."""

import re

from trainingjob_api.protocol import LOG_EXCERPT_BYTES

MAX_LOG_BYTES = 64 * 1024
"""Larger than any native stack trace, so that the lines before it are kept too."""
_FATAL = re.compile(rb"^(F\d{4} \d\d:\d\d|terminate called|Fatal Python error:)", re.MULTILINE)
"""First lines of fatal errors of native libraries, C++ and Python. Stack traces and module lists follow them."""


class LogTail:
    """A buffer of the last bytes written, at most `limit`."""

    def __init__(self, limit: int = MAX_LOG_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()

    def write(self, chunk: bytes) -> None:
        """Append bytes and drop the oldest."""
        self._kept += chunk
        if len(self._kept) > 2 * self._limit:  # not on each write: a log is many small writes
            del self._kept[: -self._limit]

    def text(self) -> str:
        """Return the buffered text."""
        return self._kept[-self._limit :].decode(errors="ignore")


def excerpt(log: str, limit: int = LOG_EXCERPT_BYTES) -> str:
    """Return the part of a log that best explains its program's exit, at most `limit` bytes.

    The excerpt begins at the first native fatal error, if any. Otherwise it is the last complete lines, where a
    traceback ends.
    """
    text = log.strip().encode()
    if fatal := _FATAL.search(text):
        return text[fatal.start() :][:limit].decode(errors="ignore").strip()
    kept = text[-limit:]
    if len(text) > limit:
        _, newline, rest = kept.partition(b"\n")
        kept = rest if newline else kept
    return kept.decode(errors="ignore").strip()
