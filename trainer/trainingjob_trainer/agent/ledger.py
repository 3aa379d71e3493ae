"""Which worlds this pod has been in, for the agent that follows when the container is restarted.

A pod's folder for temporary files outlives its container. Without this an agent that was restarted would take the world
of its dead child for one that it has yet to join, and a process that the others believe dead would knock at their door.
"""

import tempfile
from pathlib import Path


class Ledger:
    """The highest generation that a child of this pod was started in.

    Reading and writing raise `OSError` where the folder cannot be used, and `ValueError` where the file is not ours.
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
        """Remember a generation."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(generation))
        fresh.replace(self._path)

    def forget(self) -> None:
        """Leave nothing behind."""
        self._path.unlink(missing_ok=True)
