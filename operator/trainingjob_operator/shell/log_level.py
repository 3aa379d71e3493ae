"""Log level from a file, which an administrator can change while the process runs.

The chart mounts a ConfigMap. The kubelet updates its files within about a minute, and the process reads them again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from trainingjob_operator.shell.logging_setup import LEVELS, Log, set_log_level

REFRESH_SECONDS = 10.0

log = Log("logging")


@contextlib.asynccontextmanager
async def following_log_level(path: Path | None) -> AsyncIterator[None]:
    """Apply the level of a file now and after each change. None: the level stays."""
    if path is None:
        yield
        return
    follower = LevelFile(path)
    follower.refresh()
    task = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class LevelFile:
    """A file with one of `LEVELS`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_content = ""

    async def run(self) -> None:
        """Read the file periodically. Never returns."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Apply the level if the file changed. An invalid or missing file keeps the level in use."""
        try:
            content = self._path.read_text().strip().lower()
        except (OSError, ValueError) as error:
            content = f"unreadable: {error}"
        if content == self._last_content:  # log a lasting problem only once
            return
        self._last_content = content
        if content in LEVELS:
            set_log_level(content)
            log.info("log level", level=content)
        else:
            log.error("ignoring an invalid log level", path=str(self._path), level=content, allowed=", ".join(LEVELS))
