"""Answers of object stores that no repetition changes: each names what is wrong, after as many requests as it needs."""

import errno
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import pytest

from tests.support.trainer.json_server import JsonHandler, serve
from trainingjob_trainer.store import retry
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store


class Refusal(NamedTuple):
    """An answer to a write, the errno and text of the error, and the number of requests."""

    scheme: str
    status: int
    body: str
    number: int
    words: str
    requests: int = 1
    kind: str = "application/xml"


REFUSALS = {
    "a bucket that is missing": Refusal("gs", 404, "bucket does not exist", errno.ENOENT, "gs://runs does not exist"),
    "a bucket of S3 that is missing": Refusal("s3", 404, "NoSuchBucket", errno.ENOENT, "s3://runs does not exist"),
    "a read-only bucket": Refusal("gs", 403, "storage.objects.create denied", errno.EACCES, "no permission for gs://"),
    "a read-only bucket of S3": Refusal("s3", 403, "AccessDenied", errno.EACCES, "no permission for s3://runs"),
    "a foreign bucket": Refusal("s3", 403, "AllAccessDisabled", errno.EACCES, "no permission for s3://runs"),
    "a bucket of another region": Refusal("s3", 301, "PermanentRedirect", errno.EIO, "301 PermanentRedirect"),
    "a retention policy": Refusal("gs", 403, "retentionPolicyNotMet", errno.EACCES, "retentionPolicyNotMet"),
    "an object lock": Refusal("s3", 403, "AccessDenied: object protected by object lock", errno.EACCES, "object lock"),
    "a held object": Refusal("gs", 403, "objectUnderActiveHold", errno.EACCES, "objectUnderActiveHold"),
    "an unknown key": Refusal("s3", 403, "InvalidAccessKeyId", errno.EACCES, "no permission for s3://runs"),
    "a wrong secret": Refusal("s3", 403, "SignatureDoesNotMatch", errno.EACCES, "SignatureDoesNotMatch"),
    "a clock that is wrong": Refusal("s3", 403, "RequestTimeTooSkewed", errno.EACCES, "RequestTimeTooSkewed"),
    "an expired token": Refusal("gs", 401, "Invalid Credentials", errno.EACCES, "refuses the credentials", 3),
    "an expired token of S3": Refusal("s3", 400, "ExpiredToken", errno.EACCES, "refuses the credentials", 3),
    "a login page": Refusal("gs", 200, "<html>Log in", errno.EIO, "is a web page", kind="text/html"),
    "a page of a proxy": Refusal("s3", 403, "<html>Blocked", errno.EIO, "is a web page", kind="text/html"),
    "a page of another server": Refusal("s3", 404, "<html>Not found", errno.EIO, "is a web page", kind="text/html"),
    "a billing account that is closed": Refusal("gs", 403, "accountDisabled", errno.EACCES, "accountDisabled"),
    "an API that is another one": Refusal("gs", 405, "Method Not Allowed", errno.EIO, "405 Method Not Allowed"),
    "a quota of storage": Refusal("s3", 403, "QuotaExceeded", errno.EACCES, "QuotaExceeded"),
}


class Handler(JsonHandler):
    """Answers all writes alike, and counts them."""

    refusal: ClassVar[Refusal]
    requests: ClassVar[int] = 0

    def do_POST(self) -> None:  # noqa: N802  # the name of the library
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).requests += 1
        self.send_response(self.refusal.status)
        self.send_header("Content-Type", self.refusal.kind)
        self.send_header("Content-Length", str(len(self.refusal.body)))
        self.end_headers()
        self.wfile.write(self.refusal.body.encode())

    do_PUT = do_POST  # noqa: N815  # the name of the library


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Store]]:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)
    with serve(Handler) as url:
        for name in ("STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        yield {scheme: open_store(f"{scheme}://runs/run") for scheme in ("gs", "s3")}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_final_and_is_explained(stores: dict[str, Store], refusal: Refusal) -> None:
    Handler.refusal, Handler.requests = refusal, 0

    with pytest.raises(OSError, match=refusal.words) as caught:
        stores[refusal.scheme].write("a", (b"1",))

    assert caught.value.errno == refusal.number
    assert Handler.requests == refusal.requests
