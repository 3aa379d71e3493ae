"""Objects as files: ranges of one version, two of which are in memory at a time."""

import errno
import io
import random
from collections.abc import Callable

import pytest

from trainingjob_trainer.store import object_file
from trainingjob_trainer.store.bucket import Piece, PreconditionError
from trainingjob_trainer.store.object_file import ObjectFile, StoredObject

CONTENT = random.Random(1).randbytes(1000)  # noqa: S311  # the same content in each run
RANGE = 100


class Ranges:
    """A bucket with one object, which records the ranges that are read."""

    def __init__(self, version: str = "1") -> None:
        self.version = version
        self.read_ranges: list[tuple[int, int]] = []
        self.before: Callable[[], None] = lambda: None

    def read(self, key: str, start: int, stop: int, version: str = "") -> Piece:
        self.before()
        assert key == "folder/a"
        self.read_ranges.append((start, stop))
        if version != self.version:
            raise PreconditionError(errno.EEXIST, "exists or has changed")
        return Piece(CONTENT[start:stop], len(CONTENT), self.version)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    monkeypatch.setattr(object_file, "READ_BYTES", RANGE)
    return Ranges()


def open_it(bucket: Ranges, size: int = len(CONTENT)) -> io.BufferedReader:
    stored = StoredObject("gs://bucket/folder/a", size, "1")
    return io.BufferedReader(ObjectFile(bucket, stored), 16)  # type: ignore[arg-type]  # only `read` is used


def test_an_object_is_read_once_in_order(bucket: Ranges) -> None:
    with open_it(bucket) as file:
        assert b"".join(iter(lambda: file.read(7), b"")) == CONTENT

    assert bucket.read_ranges == [(start, start + RANGE) for start in range(0, 1000, RANGE)]


def test_any_place_can_be_read(bucket: Ranges) -> None:
    rng = random.Random(2)  # noqa: S311  # the same places in each run
    with open_it(bucket) as file:
        for _ in range(200):
            start, size = rng.randrange(1100), rng.randrange(300)
            file.seek(start)
            assert file.read(size) == CONTENT[start : start + size]
        assert (file.seek(-4, io.SEEK_END), file.read()) == (996, CONTENT[996:])
        assert (file.seek(0), file.readline()) == (0, io.BytesIO(CONTENT).readline())


def test_a_small_file_is_one_request(bucket: Ranges) -> None:
    with open_it(bucket, RANGE) as file:
        assert file.read(16) == CONTENT[:16]
        file.seek(0)
        assert file.read() == CONTENT[:RANGE]

    assert bucket.read_ranges == [(0, RANGE)]


def test_an_empty_object_is_no_request(bucket: Ranges) -> None:
    assert (open_it(bucket, 0).read(), bucket.read_ranges) == (b"", [])


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_replaced_object_is_noticed_at_any_range(bucket: Ranges, after: int) -> None:
    left = iter(range(after))

    def replace() -> None:
        if next(left, None) is None:
            bucket.version = "2"

    bucket.before = replace
    with pytest.raises(OSError, match="gs://bucket/folder/a was replaced") as caught, open_it(bucket) as file:
        file.read()
    assert caught.value.errno == errno.ESTALE


def test_an_object_that_became_shorter_is_noticed_without_preconditions(bucket: Ranges) -> None:
    with pytest.raises(OSError, match="was replaced"):
        open_it(bucket, 1010).read()
