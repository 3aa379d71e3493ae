"""Parts of large uploads to Google Cloud Storage: whose parts a write deletes, and when."""

import errno
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.trainer.json_server import JsonHandler, serve
from tests.support.trainer.object_servers import ObjectServers, new_root
from trainingjob_trainer.store import gcs_bucket
from trainingjob_trainer.store.bucket import PART_BYTES
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LEFT = ("model.part-0123-0", "model.part-0123-0-composed")
OTHERS = ("model.partial", "other.part-0123-0")


@pytest.fixture
def store(object_servers: ObjectServers) -> Iterator[Store]:
    with object_servers.environment("gs"):
        yield open_store(new_root("gs"))


def test_the_next_upload_deletes_the_old_parts_of_an_interrupted_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_bucket, "ABANDONED_AGE", timedelta(seconds=-60))  # every part is old
    for name in (*LEFT, *OTHERS):
        store.write(f"weights/{name}", (b"left",))

    store.write("weights/model", (bytes(PART_BYTES), b"end"))

    assert store.size("weights/model") == PART_BYTES + 3
    assert store.list_files("weights") == sorted(["model", *OTHERS])


def test_an_upload_keeps_parts_that_another_host_may_still_need(store: Store) -> None:
    for name in LEFT:
        store.write(f"weights/{name}", (b"left",))

    store.write("weights/model", (bytes(PART_BYTES), b"end"))

    assert store.list_files("weights") == sorted(["model", *LEFT])


def test_two_hosts_write_the_same_object_at_the_same_time(store: Store) -> None:
    def write_meanwhile() -> Iterator[bytes]:
        yield bytes(2 * PART_BYTES)
        store.write("data/00003.tokens", (bytes(PART_BYTES), b"first"))
        yield b"second"

    store.write("data/00003.tokens", write_meanwhile())

    assert store.size("data/00003.tokens") == 2 * PART_BYTES + 6
    assert store.list_files("data") == ["00003.tokens"]


class WithoutParts(JsonHandler):
    """Accepts parts, and answers as Google does if they are gone when they are composed."""

    def do_POST(self) -> None:  # noqa: N802  # the name of the library
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/compose"):
            self.send_json({"error": {"code": 404, "message": "2 of 2 source objects missing"}}, 404)
        else:
            self.send_json({"crc32c": gcs_bucket._checksum(body)})

    def do_DELETE(self) -> None:  # noqa: N802  # the name of the library
        self.send_json({}, 204)


def test_parts_that_something_else_deletes_are_no_missing_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(WithoutParts) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        store = open_store("gs://runs/run")

        with pytest.raises(OSError, match=r"parts of gs://runs/run/model were deleted .* Write it again") as caught:
            store.write("model", (bytes(PART_BYTES), b"end"))

    assert caught.value.errno == errno.EIO
    assert "2 of 2 source objects missing" in str(caught.value)


def test_a_missing_bucket_is_named_by_a_large_upload(store: Store) -> None:
    with pytest.raises(FileNotFoundError, match="gs://missing"):
        open_store("gs://missing/run").write("model", (bytes(PART_BYTES), b"end"))
