"""Mapping from HTTP errors of the API server to the errors of `interfaces`, with the server's message."""

import json

from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.report.rejections import WEBHOOK_FAILED
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)

_RETRY_LATER = frozenset({408, 429, 500, 502, 503, 504})


class NotFoundError(Exception):
    """The kind exists, but not this object."""


def map_error(request_name: str, status: int, text: bytes, retry_after: str) -> Exception:
    """Map an error response of the API server to an exception with the server's message."""
    body = _status_of(text)
    message = f"{request_name}: {status} {body.get('message') or text[:200].decode(errors='replace').strip()}".rstrip()
    match status:
        case 404 if _is_about_object(body):
            return NotFoundError(message)
        case 404:
            return MissingKindError(message)
        case 409 | 410:
            return ConflictError(message)
        case 401:  # refreshed credentials failed too; they may be renewed soon
            return ClusterUnavailableError(f"{message} (the credentials may have expired)")
        case 500 if WEBHOOK_FAILED in str(body.get("message")):
            return ForbiddenError(str(body["message"]))
        case _ if status in _RETRY_LATER:
            return ClusterUnavailableError(message, retry_after=_seconds(retry_after))
        case _:
            return ForbiddenError(str(body.get("message") or message))


def _status_of(text: bytes) -> Manifest:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}


def _is_about_object(status: Manifest) -> bool:
    """Return whether a 404 is about an object: for an unknown kind the server reports no name."""
    details = status.get("details")
    return isinstance(details, dict) and bool(details.get("name"))


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdecimal() else 0.0
