"""A bucket of Amazon S3, or of another store with its API and conditional writes, such as MinIO, Ceph or R2."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import quote
from xml.etree import ElementTree as ET

from trainingjob_trainer.store.bucket import (
    NONCE_KEY,
    PARALLEL_PARTS,
    ListedObject,
    ObjectInfo,
    Page,
    Piece,
)
from trainingjob_trainer.store.http_client import MAX_SHOWN, Answer, HttpClient, Request
from trainingjob_trainer.store.parallel_requests import map_in_flight
from trainingjob_trainer.store.retry import TransientError, throttled
from trainingjob_trainer.store.s3_credentials import S3CredentialChain, find_region
from trainingjob_trainer.store.s3_signature import S3Signer

NONCE_HEADER = f"x-amz-meta-{NONCE_KEY}"
EXPIRED_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired")
BUSY_CODES = tuple(
    f"<Code>{code}</Code>"  # an error answer also names the key, which may contain any of these words
    for code in ("SlowDown", "ConditionalRequestConflict", "RequestTimeout", "OperationAborted")
)
LATE_CODES = (*BUSY_CODES, "<Code>InternalError</Code>", "<Code>ServiceUnavailable</Code>")
"""Errors that pass, in an answer whose status the store sent before it knew them."""
DNS_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""A bucket's name that may be part of a host name under the wildcard certificate of AWS."""


class S3Bucket:
    """The objects of a bucket, through the REST API. Source: reference of the Amazon S3 API, version 2006-03-01."""

    def __init__(self, name: str, environment: Mapping[str, str] = os.environ) -> None:
        region, credentials = find_region(environment), S3CredentialChain()
        endpoint = find_endpoint(environment)
        self._prefix = f"/{quote(name)}"
        if not endpoint:
            is_dns = DNS_NAME.fullmatch(name)
            endpoint = f"https://{name}.s3.{region}.amazonaws.com" if is_dns else f"https://s3.{region}.amazonaws.com"
            self._prefix = "" if is_dns else self._prefix
        auth = S3Signer(region, credentials.get)
        self._http = HttpClient(endpoint, f"s3://{name}", auth, credentials.refresh, EXPIRED_CODES, BUSY_CODES)
        self._name = name

    def list_page(self, prefix: str, delimiter: str, token: str) -> Page:
        """Return a page of ListObjectsV2."""
        query = {"list-type": "2", "prefix": prefix, "delimiter": delimiter, "continuation-token": token}
        answer = self._http.send(Request("GET", self._prefix or "/", _encode_query(query)))
        tree = _parse(answer)
        objects = [_parse_listed(element) for element in tree.iterfind("Contents")]
        prefixes = [element.text or "" for element in tree.iterfind("CommonPrefixes/Prefix")]
        return Page(objects, prefixes, tree.findtext("NextContinuationToken") or "")

    def describe(self, key: str) -> ObjectInfo:
        """Return size, nonce and ETag by HeadObject."""
        answer = self._http.send(Request("HEAD", self._path(key), accepted=(200, 404)))
        if answer.status == 404:
            raise _missing(key)
        nonce, tag = answer.headers.get(NONCE_HEADER, ""), answer.headers.get("ETag", "")
        return ObjectInfo(int(answer.headers["Content-Length"]), nonce, tag)

    def read(self, key: str, start: int, stop: int, version: str = "") -> Piece:
        """Return a range by GetObject; the version is the ETag."""
        headers = {"Range": f"bytes={start}-{stop - 1}"} | ({"If-Match": version} if version else {})
        answer = self._http.send(Request("GET", self._path(key), headers=headers, accepted=(200, 206, 404, 416)))
        if answer.status == 404:
            if b"NoSuchBucket" in answer.body:
                raise FileNotFoundError(errno.ENOENT, f"the bucket s3://{self._name} does not exist")
            raise _missing(key)
        return read_piece(answer, start, answer.headers.get("ETag", ""))

    def put(self, key: str, content: bytes, nonce: str, *, is_exclusive: bool = False) -> None:
        """Write an object by PutObject."""
        headers = {NONCE_HEADER: nonce} | ({"If-None-Match": "*"} if is_exclusive else {})
        self._http.send(Request("PUT", self._path(key), headers=headers, body=content))

    def put_parts(self, key: str, parts: Iterator[bytes], nonce: str) -> None:
        """Write an object by a multipart upload, with several parts in flight."""
        path = self._path(key)
        response = self._http.send(Request("POST", path, "uploads=", {NONCE_HEADER: nonce}))
        upload = _encode_query({"uploadId": _parse(response).findtext("UploadId") or ""})
        try:
            tags = self._upload_parts(path, upload, parts)
            self._complete(key, upload, tags, nonce)
        except BaseException:
            with suppress(OSError):  # a lifecycle rule of the bucket removes what stays
                self._http.send(Request("DELETE", path, upload, accepted=(204, 404)))
            raise

    def delete(self, key: str) -> None:
        """Delete an object by DeleteObject."""
        self._http.send(Request("DELETE", self._path(key), accepted=(200, 204, 404)))

    def _upload_parts(self, path: str, upload: str, parts: Iterator[bytes]) -> list[str]:
        def send(numbered: tuple[int, bytes]) -> str:
            number, part = numbered
            return self._http.send(Request("PUT", path, f"partNumber={number}&{upload}", body=part)).headers["ETag"]

        return list(map_in_flight(send, enumerate(parts, 1), PARALLEL_PARTS))

    def _complete(self, key: str, upload: str, tags: list[str], nonce: str) -> None:
        """Make the parts an object. If the answer was lost, the upload is gone and the object has the nonce."""
        body = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in enumerate(tags, 1)
        )
        content = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode()
        request = Request("POST", self._path(key), upload, body=content, accepted=(200, 404))
        answer = self._http.send(request, self._check_completed)
        is_done = answer.status == 200 and b"<Error>" not in answer.body
        if not is_done and self.describe(key).nonce != nonce:
            raise OSError(errno.EIO, f"the upload of {key} was not completed: {answer.body[:MAX_SHOWN].decode()}")

    def _check_completed(self, answer: Answer) -> None:
        """Check an answer with status 200: it may hold an error, since the store sends the status before it is done.

        Raises:
            TransientError: the store is overloaded.
        """
        if b"<Error>" in answer.body and any(code.encode() in answer.body for code in LATE_CODES):
            shown = answer.body[:MAX_SHOWN].decode(errors="replace").strip()
            raise throttled(f"s3://{self._name} is overloaded: status {answer.status} {shown}")

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{quote(key)}"


def find_endpoint(environment: Mapping[str, str]) -> str:
    """Return the endpoint that the environment names; empty: Amazon's own."""
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def read_piece(answer: Answer, start: int, version: str) -> Piece:
    """Return the range in an answer.

    Raises:
        OSError: the server has ignored the range.
    """
    if answer.status == 416:  # it ends before the range
        return Piece(b"", start, version)
    spanned = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if answer.status == 206 and spanned and int(spanned[1]) == start:
        return Piece(answer.body, int(spanned[2]), version)
    if answer.status == 200 and start == 0:
        return Piece(answer.body, len(answer.body), version)
    raise OSError(errno.EIO, "the store does not support ranges")


def _missing(key: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)


def _encode_query(query: Mapping[str, str]) -> str:
    """Return a query in the canonical order of the signature; empty values are left out."""
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(query.items()) if value)


def _parse_listed(element: ET.Element) -> ListedObject:
    """Return an object of a list. Some stores list its ETag without the quotes that their headers have."""
    tag = (element.findtext("ETag") or "").strip('"')
    return ListedObject(element.findtext("Key") or "", int(element.findtext("Size") or 0), f'"{tag}"')


def _parse(answer: Answer) -> ET.Element:
    """Return the root of an XML answer, without namespaces."""
    try:
        tree = ET.fromstring(re.sub(rb' xmlns="[^"]*"', b"", answer.body))  # noqa: S314  # it has no DTD: expat limits entities
    except ET.ParseError as error:
        raise TransientError(errno.EIO, f"the store's answer is no XML: {error}") from error
    return tree
