"""The end of a child's log: what an excerpt in the status shows when it dies."""

from trainingjob_api.protocol import LOG_EXCERPT_BYTES


class Tail:
    """The last bytes written to it, at most `limit`."""

    def __init__(self, limit: int = LOG_EXCERPT_BYTES) -> None:
        self._limit = limit
        self._kept = b""
        self._cut = False

    def write(self, chunk: bytes) -> None:
        """Append, and forget what is too old."""
        kept = self._kept + chunk
        self._cut = self._cut or len(kept) > self._limit
        self._kept = kept[-self._limit :]

    def text(self) -> str:
        """Return what is kept, from the first whole line on where there is one."""
        kept = self._kept
        if self._cut:
            _, newline, rest = kept.partition(b"\n")
            kept = rest if newline and rest else kept
        return kept.decode(errors="ignore").strip()
