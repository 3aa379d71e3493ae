"""Which store serves a root: the only place that knows all implementations."""

from pathlib import Path

from trainingjob_trainer.store.port import Store
from trainingjob_trainer.store.posix import PosixStore


def open_store(root: str | Path) -> Store:
    """Return the store at `checkpoint.uri`, `backup.uri` or `initializeFrom.uri`. It is not read or written yet."""
    return PosixStore(Path(root))
