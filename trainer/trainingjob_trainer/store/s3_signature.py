"""Signatures of requests to S3: AWS Signature Version 4, with the hash of the body.

Source: "Signature Version 4 signing process" in the reference of the Amazon S3 API. The server compares the body with
the signed hash, so each request is also verified end to end.
"""

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from requests import PreparedRequest
from requests.auth import AuthBase

from trainingjob_trainer.store.s3_credentials import S3Credentials

SCHEME = "AWS4-HMAC-SHA256"


class S3Signer(AuthBase):
    """Signs requests for a region with the credentials of the moment."""

    def __init__(
        self,
        region: str,
        credentials: Callable[[], S3Credentials],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._region = region
        self._credentials = credentials
        self._clock = clock

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Add the headers of a signature to a request."""
        key = self._credentials()
        now = self._clock().strftime("%Y%m%dT%H%M%SZ")
        body = request.body if isinstance(request.body, bytes) else b""
        url = urlsplit(request.url or "")
        request.headers["Host"] = url.netloc
        request.headers["x-amz-date"] = now
        request.headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
        if key.token:
            request.headers["x-amz-security-token"] = key.token
        signed = {
            name.lower(): str(value).strip()
            for name, value in request.headers.items()
            if name.lower() == "host" or name.lower().startswith("x-amz-")
        }
        names = ";".join(sorted(signed))
        canonical = "\n".join(
            (
                request.method or "",
                url.path or "/",
                url.query,
                *(f"{name}:{signed[name]}" for name in sorted(signed)),
                "",
                names,
                signed["x-amz-content-sha256"],
            )
        )
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = "\n".join((SCHEME, now, scope, hashlib.sha256(canonical.encode()).hexdigest()))
        signature = _sign(_signing_key(key.secret_key, scope), text).hex()
        request.headers["Authorization"] = (
            f"{SCHEME} Credential={key.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return request


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = _sign(key, part)
    return key


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
