"""Which store serves a root: the only place that knows all implementations."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trainingjob_trainer.store.port import Store
from trainingjob_trainer.store.posix import PosixStore

STORES: Mapping[str, Callable[[str], Store]] = {"": lambda root: PosixStore(Path(root))}
"""The store of each scheme. Empty: an absolute path. `StoreUri` of the API allows these roots, and no others."""


def open_store(root: str | Path) -> Store:
    """Return the store at `checkpoint.uri`, `backup.uri` or `initializeFrom.uri`. It is not read or written yet."""
    scheme, separator, _ = str(root).partition("://")
    return STORES[scheme if separator else ""](str(root))
