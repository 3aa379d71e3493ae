"""Error codes of a store that is busy: they count in error answers, and never in the data of an object."""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import pytest

from tests.support.trainer.json_server import JsonHandler, serve
from trainingjob_trainer.store import retry
from trainingjob_trainer.store.bucket import PART_BYTES
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

TEXTS = {
    "s3": b'{"text": "except RequestTimeout: retry() # or SlowDown, <Code>SlowDown</Code>"}',
    "gs": b"{\"text\": \"if reason == 'rateLimitExceeded' or reason == 'backendError': retry()\"}",
}
BUSY = b"<Error><Code>%s</Code><Message>Reduce your request rate.</Message></Error>"
COMPLETED = b"<CompleteMultipartUploadResult/>"


class Reply(NamedTuple):
    """An answer of the server."""

    status: int
    body: bytes


class Handler(JsonHandler):
    """Answers reads, deletions and the completion of uploads from lists whose last item repeats."""

    reads: ClassVar[list[Reply]] = []
    completions: ClassVar[list[Reply]] = []
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:  # noqa: N802  # the name of the library
        self._reply(self._next(self.reads))

    def do_PUT(self) -> None:  # noqa: N802  # the name of the library
        self._read_body()
        self._reply(Reply(200, b""))

    def do_POST(self) -> None:  # noqa: N802  # the name of the library
        self._read_body()
        if "uploads=" in self.path:
            self._reply(
                Reply(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
            )
        else:
            self._reply(self._next(self.completions))

    def do_DELETE(self) -> None:  # noqa: N802  # the name of the library
        self._reply(Reply(204, b""))

    def _next(self, replies: list[Reply]) -> Reply:
        self.requests.append(f"{self.command} {self.path}")
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def _read_body(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        if reply.status == 206:
            self.send_header("Content-Range", f"bytes 0-{len(reply.body) - 1}/{len(reply.body)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Store]]:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 0.05)
    monkeypatch.setattr(Handler, "requests", [])
    with serve(Handler) as url:
        for name in ("STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        yield {scheme: open_store(f"{scheme}://runs/run") for scheme in TEXTS}


@pytest.mark.parametrize("scheme", TEXTS)
@pytest.mark.parametrize("status", [200, 206])
def test_data_may_contain_the_codes_of_a_busy_store(stores: dict[str, Store], scheme: str, status: int) -> None:
    Handler.reads = [Reply(status, TEXTS[scheme])]

    assert stores[scheme].read("code.jsonl", 999) == TEXTS[scheme]
    assert len(Handler.requests) == 1


def test_a_name_may_contain_the_codes_of_a_busy_store(stores: dict[str, Store]) -> None:
    Handler.reads = [Reply(404, b"<Error><Code>NoSuchKey</Code><Key>run/SlowDown</Key></Error>")]

    with pytest.raises(FileNotFoundError, match="run/SlowDown"):
        stores["s3"].read("SlowDown", 9)
    assert len(Handler.requests) == 1


def test_an_error_answer_with_such_a_code_is_repeated(stores: dict[str, Store]) -> None:
    Handler.reads = [Reply(400, BUSY % b"RequestTimeout"), Reply(409, BUSY % b"OperationAborted"), Reply(200, b"1")]

    assert stores["s3"].read("a", 9) == b"1"
    assert len(Handler.requests) == 3


@pytest.mark.parametrize("code", [b"SlowDown", b"InternalError"])
def test_an_upload_is_completed_again_after_an_error_with_status_200(stores: dict[str, Store], code: bytes) -> None:
    Handler.completions = [Reply(200, b"\n" * 300 + BUSY % code), Reply(200, COMPLETED)]

    stores["s3"].write("large", (bytes(PART_BYTES), b"end"))

    assert len(Handler.requests) == 2


def test_an_upload_that_stays_incomplete_is_an_overloaded_store(stores: dict[str, Store]) -> None:
    Handler.completions = [Reply(200, BUSY % b"SlowDown")]

    with pytest.raises(retry.TransientError, match=r"s3://runs is overloaded: status 200 <Error><Code>SlowDown"):
        stores["s3"].write("large", (bytes(PART_BYTES), b"end"))
