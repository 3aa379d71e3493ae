"""Which store serves a root: the only place that knows all implementations."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trainingjob_trainer.store.port import Store
from trainingjob_trainer.store.posix import PosixStore


def open_store(root: str | Path) -> Store:
    """Return the store at `checkpoint.uri`, `backup.uri` or `initializeFrom.uri`. It is not read or written yet."""
    scheme, separator, _ = str(root).partition("://")
    return STORES[scheme if separator else ""](str(root))


def _open_gcs(root: str) -> Store:
    from trainingjob_trainer.store.bucket_store import BucketStore  # noqa: PLC0415  # a job with volumes needs no client
    from trainingjob_trainer.store.gcs_bucket import GcsBucket  # noqa: PLC0415

    return BucketStore(root, GcsBucket(_bucket_name(root)))


def _open_s3(root: str) -> Store:
    from trainingjob_trainer.store.bucket_store import BucketStore  # noqa: PLC0415  # a job with volumes needs no client
    from trainingjob_trainer.store.s3_bucket import S3Bucket  # noqa: PLC0415

    return BucketStore(root, S3Bucket(_bucket_name(root)))


def _bucket_name(root: str) -> str:
    return root.partition("://")[2].partition("/")[0]


STORES: Mapping[str, Callable[[str], Store]] = {
    "": lambda root: PosixStore(Path(root)),
    "gs": _open_gcs,
    "s3": _open_s3,
}
"""The store of each scheme. Empty: an absolute path. `StoreUri` of the API allows these roots, and no others."""
