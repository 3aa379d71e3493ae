"""A bucket of Google Cloud Storage, through its JSON API."""

import base64
import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import google.auth
import google_crc32c
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request as TokenRequest
from requests import PreparedRequest
from requests.auth import AuthBase

from trainingjob_trainer.store.bucket import NONCE_KEY, PARALLEL_PARTS, ListedObject, ObjectInfo, Page, Piece
from trainingjob_trainer.store.http_client import MAX_SHOWN, Answer, HttpClient, Request
from trainingjob_trainer.store.parallel_requests import map_in_flight
from trainingjob_trainer.store.retry import TransientError
from trainingjob_trainer.store.s3_bucket import read_piece

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
BUSY_CODES = ("rateLimitExceeded", "backendError", "internalError")
CONTENT_TYPE = "application/octet-stream"
MAX_COMPOSED = 32
"""Maximum number of objects that one request composes."""
ABANDONED_AGE = timedelta(hours=6)
"""Age of a part after which its upload counts as interrupted. Another host may be writing the same object."""
MISSING = (
    "no credentials for Google Cloud Storage in the pod: use Workload Identity for the service account of the pod, or "
    "set GOOGLE_APPLICATION_CREDENTIALS to a key file that spec.runtime.volumes mounts from a Secret"
)


class GoogleAuth(AuthBase):
    """Adds the access token of this pod to requests. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credentials: Any = None  # None: they must be fetched

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Add a token that has not expired.

        Raises:
            OSError: the pod has no credentials, or their source does not answer.
        """
        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(TokenRequest())
            except DefaultCredentialsError as error:
                raise PermissionError(errno.EACCES, MISSING) from error
            except GoogleAuthError as error:
                kind = TransientError if getattr(error, "retryable", False) else PermissionError
                raise kind(errno.EACCES, f"the source of the Google credentials fails: {error}") from error
            request.headers["Authorization"] = f"Bearer {self._credentials.token}"
        return request

    def refresh(self) -> None:
        """Fetch a token again with the next request: the store has refused it."""
        with self._lock:
            self._credentials = None


class NoAuth(AuthBase):
    """Adds nothing: emulators know no tokens."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Return the request as it is."""
        return request


class GcsBucket:
    """The objects of a bucket. Source: reference of the Cloud Storage JSON API, v1."""

    def __init__(self, name: str, environment: Mapping[str, str] = os.environ) -> None:
        emulator = find_emulator(environment)
        google_auth = GoogleAuth()
        auth = NoAuth() if emulator else google_auth
        self._http = HttpClient(emulator or ENDPOINT, f"gs://{name}", auth, google_auth.refresh, (), BUSY_CODES)
        self._name = name
        self._objects = f"/storage/v1/b/{quote(name)}/o"
        self._uploads = f"/upload/storage/v1/b/{quote(name)}/o"

    def list_page(self, prefix: str, delimiter: str, token: str) -> Page:
        """Return a page of `objects.list`."""
        query = {"prefix": prefix, "delimiter": delimiter, "pageToken": token}
        fields = "fields=items(name,size,generation),prefixes,nextPageToken"
        found = _parse(self._http.send(Request("GET", self._objects, f"{fields}&{_encode_query(query)}")))
        items = found.get("items", ())
        objects = [ListedObject(item["name"], int(item["size"]), str(item["generation"])) for item in items]
        return Page(objects, found.get("prefixes", []), found.get("nextPageToken", ""))

    def describe(self, key: str) -> ObjectInfo:
        """Return size, nonce and generation by `objects.get`."""
        answer = self._http.send(Request("GET", self._path(key), accepted=(200, 404)))
        self._check_found(answer, key)
        found = _parse(answer)
        nonce = found.get("metadata", {}).get(NONCE_KEY, "")
        return ObjectInfo(int(found["size"]), nonce, str(found["generation"]))

    def read(self, key: str, start: int, stop: int, version: str = "") -> Piece:
        """Return a range by `objects.get` with `alt=media`; the version is the generation."""
        query = "alt=media" + (f"&ifGenerationMatch={version}" if version else "")
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._http.send(Request("GET", self._path(key), query, headers, accepted=(200, 206, 404, 416)))
        self._check_found(answer, key)
        return read_piece(answer, start, answer.headers.get("X-Goog-Generation", ""))

    def put(self, key: str, content: bytes, nonce: str, *, is_exclusive: bool = False) -> None:
        """Write an object by a multipart request with its checksum, which the store compares."""
        about = {"name": key, "metadata": {NONCE_KEY: nonce}, "crc32c": _checksum(content)}
        boundary = uuid.uuid4().hex
        head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{json.dumps(about)}\r\n"
        head += f"--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n"
        body = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
        query = "uploadType=multipart" + ("&ifGenerationMatch=0" if is_exclusive else "")
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self._http.send(Request("POST", self._uploads, query, headers, body))

    def put_parts(self, key: str, parts: Iterator[bytes], nonce: str) -> None:
        """Write the parts as objects of their own, and compose them to the final object.

        Every request may be repeated, which does not hold for the parts of a resumable upload. Two hosts may write one
        object at the same time, so each deletes the parts of this upload, and those of others when they are old.
        """
        pieces: list[str] = []

        def send(numbered: tuple[int, bytes]) -> str:
            number, part = numbered
            piece = f"{key}.part-{nonce}-{number}"
            pieces.append(piece)
            self._put_part(piece, part)
            return piece

        try:
            batch: list[str] = []
            for piece in map_in_flight(send, enumerate(parts), PARALLEL_PARTS):
                if len(batch) == MAX_COMPOSED:
                    pieces.append(f"{batch[-1]}-composed")
                    self._compose(batch, pieces[-1], nonce)
                    batch = [pieces[-1]]
                batch.append(piece)
            self._compose(batch, key, nonce)
            pieces += set(self._list_abandoned_parts(key)) - set(pieces)
        finally:
            for _ in map_in_flight(self._discard, pieces, PARALLEL_PARTS):
                pass

    def delete(self, key: str) -> None:
        """Delete an object by `objects.delete`."""
        answer = self._http.send(Request("DELETE", self._path(key), accepted=(200, 204, 404)))
        self._check_bucket(answer)

    def _put_part(self, key: str, part: bytes) -> None:
        """Write a part by a request whose body is the part alone, which is not copied, and compare the checksum.

        Raises:
            TransientError: the store has received other bytes.
        """
        query = f"uploadType=media&fields=crc32c&name={quote(key, safe='')}"
        upload = Request("POST", self._uploads, query, {"Content-Type": CONTENT_TYPE}, part)
        expected = _checksum(part)

        def check(answer: Answer) -> None:
            if _parse(answer).get("crc32c") != expected:
                raise TransientError(errno.EIO, f"gs://{self._name}/{key} differs from what was sent")

        self._http.send(upload, check)

    def _compose(self, sources: list[str], key: str, nonce: str) -> None:
        content = {
            "sourceObjects": [{"name": name} for name in sources],
            "destination": {"metadata": {NONCE_KEY: nonce}, "contentType": CONTENT_TYPE},
        }
        headers = {"Content-Type": "application/json"}
        body = json.dumps(content).encode()
        answer = self._http.send(Request("POST", f"{self._path(key)}/compose", "", headers, body, accepted=(200, 404)))
        self._check_bucket(answer)
        if answer.status == 404:
            shown = answer.body[:MAX_SHOWN].decode(errors="replace").strip()
            raise OSError(
                errno.EIO,
                f"parts of gs://{self._name}/{key} were deleted before the object was complete. Write it again, and "
                f"delete no newer object with `.part-` in its name: {shown}",
            )

    def _list_abandoned_parts(self, key: str) -> Iterator[str]:
        """Yield the parts of interrupted writes of an object, which its newest write has replaced.

        Ages are by the clock of the store alone.
        """
        fields, token = "fields=items(name,timeCreated),nextPageToken", ""
        with suppress(OSError, ValueError, KeyError):  # they cost space alone
            while True:
                query = _encode_query({"prefix": f"{key}.part-", "pageToken": token})
                answer = self._http.send(Request("GET", self._objects, f"{fields}&{query}"))
                found, now = _parse(answer), parsedate_to_datetime(answer.headers["Date"])
                for item in found.get("items", ()):
                    if now - datetime.fromisoformat(item["timeCreated"]) > ABANDONED_AGE:
                        yield item["name"]
                token = found.get("nextPageToken", "")
                if not token:
                    return

    def _discard(self, key: str) -> None:
        with suppress(OSError):  # it stays beside the object, and goes with its folder
            self.delete(key)

    def _path(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _check_found(self, answer: Answer, key: str) -> None:
        if answer.status == 404:
            self._check_bucket(answer)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)

    def _check_bucket(self, answer: Answer) -> None:
        if answer.status == 404 and b"bucket does not exist" in answer.body:
            raise FileNotFoundError(errno.ENOENT, f"the bucket gs://{self._name} does not exist")


def find_emulator(environment: Mapping[str, str]) -> str:
    """Return the URL of the emulator that the environment names; empty: Google's own."""
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    return f"http://{emulator}" if emulator and "://" not in emulator else emulator


def _checksum(content: bytes) -> str:
    """Return the CRC32C as the store has it. An MD5 took as much time as all else of an upload."""
    checksum: bytes = google_crc32c.Checksum(content).digest()
    return base64.b64encode(checksum).decode()


def _encode_query(query: Mapping[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)


def _parse(answer: Answer) -> Any:
    """Return the content of a JSON answer."""
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise TransientError(errno.EIO, f"the store's answer is no JSON: {error}") from error
