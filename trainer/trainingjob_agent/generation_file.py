"""The highest generation that a child of this pod has joined, stored for an agent that restarts with the container.

A pod's temporary folder outlives its container. Without this file, a restarted agent would join the world of its dead
child again. Its process would try to reconnect to a world that already considers it dead.
"""

import tempfile
from pathlib import Path


class GenerationFile:
    """The highest generation that a child of this pod was started in.

    Reading and writing raise `OSError` if the folder cannot be used, and `ValueError` if the file is malformed.
    """

    def __init__(self, pod_uid: str, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir())
        self._path = folder / f"trainingjob-agent-{pod_uid}"

    def read(self) -> int:
        """Return the generation; 0: none."""
        try:
            return int(self._path.read_text())
        except FileNotFoundError:
            return 0

    def write(self, generation: int) -> None:
        """Store a generation."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(generation))
        fresh.replace(self._path)

    def delete(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)
