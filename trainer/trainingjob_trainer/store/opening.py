"""Which store serves a root: the only place that knows all implementations."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from trainingjob_trainer.store.bucket import Bucket
from trainingjob_trainer.store.port import Store
from trainingjob_trainer.store.posix import PosixStore


def open_store(root: str | Path) -> Store:
    """Return the store at `checkpoint.uri`, `backup.uri` or `initializeFrom.uri`. It is not read or written yet."""
    scheme, separator, _ = str(root).partition("://")
    return STORES[scheme if separator else ""](str(root))


@cache
def connect_bucket(scheme: str, name: str) -> Bucket:
    """Return a bucket, whose connections and credentials this process shares."""
    return BUCKETS[scheme](name)


def split_uri(uri: str) -> tuple[str, str, str]:
    """Return the scheme of the URI of an object or folder, its bucket, and its full name in the bucket."""
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    return scheme, bucket, name


def _open_gcs(name: str) -> Bucket:
    from trainingjob_trainer.store.gcs_bucket import GcsBucket  # noqa: PLC0415  # a job with volumes needs no client

    return GcsBucket(name)


def _open_s3(name: str) -> Bucket:
    from trainingjob_trainer.store.s3_bucket import S3Bucket  # noqa: PLC0415  # a job with volumes needs no client

    return S3Bucket(name)


def _open_bucket_store(root: str) -> Store:
    from trainingjob_trainer.store.bucket_store import BucketStore  # noqa: PLC0415  # as above

    scheme, name, _ = split_uri(root)
    return BucketStore(root, BUCKETS[scheme](name))


BUCKETS: Mapping[str, Callable[[str], Bucket]] = {"gs": _open_gcs, "s3": _open_s3}
"""The client of each scheme, by the name of a bucket."""
STORES: Mapping[str, Callable[[str], Store]] = {
    "": lambda root: PosixStore(Path(root)),
    **dict.fromkeys(BUCKETS, _open_bucket_store),
}
"""The store of each scheme. Empty: an absolute path. `StoreUri` of the API allows these roots, and no others."""
