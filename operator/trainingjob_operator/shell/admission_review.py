"""Strict parsing of AdmissionReview requests, and construction of responses.

API servers send well-formed JSON. Other input cannot come from an API server, so parsing rejects it before validation:
invalid UTF-8, `NaN` and `Infinity`, duplicate keys and deep nesting.
"""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainingjob_operator.core.manifests import Manifest, get_text, get_value

API_VERSION = "admission.k8s.io/v1"
MAX_BYTES = 2 * 1024 * 1024
"""An update with two versions of an object, each with spec, annotations and status at their limits, has 1.4 MiB."""
MAX_DEPTH = 64
"""Nesting levels of objects and lists. The deepest valid field is `metadata.managedFields`, with about 20."""
MAX_MESSAGE = 16 * 1024
MAX_WARNING = 256
"""Characters of one warning. The API server may truncate longer ones."""
MAX_WARNINGS = 4096
"""Characters of all warnings of a response. The API server silently drops the rest."""
TRUNCATION_WARNING = "There are more warnings. `trainingjob validate` lists all of them."
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_FIRST_UID = re.compile(rb'"uid"\s*:\s*"(%s)"' % _UID.pattern.encode())
_FIRST_USERNAME = re.compile(rb'"username"\s*:\s*"([^"]{0,256})"')
_HEAD_BYTES = 64 * 1024
_CONTINUATION = "… "
"""Prefix of a warning that continues the previous one."""
_REASONS = {413: "RequestEntityTooLarge", 422: "Invalid", 503: "ServiceUnavailable"}


class NotAReviewError(Exception):
    """The request is not a valid AdmissionReview. The message says why."""


class TooDeepError(Exception):
    """The review is nested deeper than any valid TrainingJob."""


def parse_review(body: bytes) -> tuple[str, Manifest]:
    """Return the uid and the request of a review.

    Raises:
        NotAReviewError: `body` is not an AdmissionReview.
        TooDeepError: the review is nested more than `MAX_DEPTH` levels deep.
    """
    try:
        # Decoded first: json would detect other encodings than UTF-8 in bytes, and accept lone surrogates.
        review = json.loads(body.decode(), object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except ValueError as error:
        raise NotAReviewError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise TooDeepError from error
    if _is_too_deep(review):
        raise TooDeepError
    request = get_value(review, "request")
    uid = get_text(request, "uid")
    if (
        get_text(review, "kind") != "AdmissionReview"
        or get_text(review, "apiVersion") != API_VERSION
        or not _UID.fullmatch(uid)
    ):
        raise NotAReviewError(f"the body is not an AdmissionReview of {API_VERSION} with a request and its uid")
    operation = get_text(request, "operation")
    if operation not in OPERATIONS:
        raise NotAReviewError(
            f"the body has the operation '{operation[:32]}', which must be one of {', '.join(OPERATIONS)}"
        )
    return uid, request


def scan_uid(body: bytes) -> str:
    """Return the UID of a review without parsing it: API servers write the UID first.

    Raises:
        NotAReviewError: the start of the body holds no UID.
    """
    match = _FIRST_UID.search(body[:_HEAD_BYTES])
    if match is None:
        raise NotAReviewError("the body is too large or too deep to read, and has no uid near its beginning")
    return match[1].decode()


def scan_user(body: bytes) -> str:
    """Return the user of a review without parsing it: API servers write the user before the object. Empty: none."""
    match = _FIRST_USERNAME.search(body[:_HEAD_BYTES])
    return match[1].decode(errors="replace") if match else ""


def allow_response(uid: str, warnings: Sequence[str] = ()) -> Manifest:
    """Return the response that allows an object, with warnings for its sender."""
    return _review({"uid": uid, "allowed": True}, warnings)


def deny_response(uid: str, code: int, message: str, warnings: Sequence[str] = ()) -> Manifest:
    """Return the response that rejects an object."""
    truncated = _replace_surrogates(message).encode()[:MAX_MESSAGE].decode(errors="ignore")
    status = {"code": code, "reason": _REASONS.get(code, "InternalError"), "message": truncated}
    return _review({"uid": uid, "allowed": False, "status": status}, warnings)


def split_warnings(warnings: Sequence[str]) -> list[str]:
    """Split warnings into lines within the API server's limits of length and total size."""
    pieces = [piece for warning in warnings for piece in _split(warning)]
    lines: list[str] = []
    remaining = MAX_WARNINGS - len(TRUNCATION_WARNING)
    for piece in pieces:
        remaining -= len(piece)
        if remaining < 0:
            return [*lines, TRUNCATION_WARNING]
        lines.append(piece)
    return lines


def _review(response: Manifest, warnings: Sequence[str]) -> Manifest:
    if warnings:
        response["warnings"] = split_warnings(warnings)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _split(warning: str) -> list[str]:
    """Wrap a warning into lines of `MAX_WARNING` characters."""
    printable = "".join(character if character.isprintable() else " " for character in _replace_surrogates(warning))
    return textwrap.wrap(printable, MAX_WARNING, subsequent_indent=_CONTINUATION, break_on_hyphens=False)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        duplicate, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the key '{duplicate[:32]}' more than once")
    return mapping


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _is_too_deep(value: Any) -> bool:
    """Return whether a value is nested more than `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
