"""Credentials for S3, from the environment of the pod: static keys, a web identity token, or a container endpoint.

This is the chain that AWS' own libraries and TensorStore follow in a pod: keys from a Secret, IAM roles for service
accounts, EKS Pod Identity. Credentials of the node are not used: a pod should have its own.
"""

import errno
import json
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import requests

from trainingjob_trainer.store.retry import TransientError

REFRESH_BEFORE = timedelta(minutes=5)
"""Time before their expiry at which credentials are replaced."""
REQUEST_SECONDS = 10.0
MAX_SHOWN = 15
SESSION_NAME = "trainingjob"
ECS_HOST = "http://169.254.170.2"
"""Address of the container endpoint that `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` is relative to."""
MISSING = (
    "no credentials for S3 in the pod: give its service account a role (IAM roles for service accounts or EKS Pod "
    "Identity), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from a Secret in spec.runtime.env"
)


class S3Credentials(NamedTuple):
    """Keys for S3. `token` is empty for static keys."""

    access_key: str
    secret_key: str
    token: str = ""
    expires: datetime | None = None  # None: static keys

    @property
    def is_expiring(self) -> bool:
        """Return whether the keys must be replaced now."""
        return self.expires is not None and datetime.now(UTC) + REFRESH_BEFORE >= self.expires


class S3CredentialChain:
    """The newest credentials of this pod. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: S3Credentials | None = None  # None: they must be fetched

    def get(self) -> S3Credentials:
        """Return credentials that have not expired.

        Raises:
            OSError: the pod has none, or their source does not answer.
        """
        with self._lock:
            if self._current is None or self._current.is_expiring:
                self._current = load_credentials(os.environ)
            return self._current

    def refresh(self) -> None:
        """Fetch the credentials again with the next request: the store has refused them."""
        with self._lock:
            self._current = None


def load_credentials(environment: Mapping[str, str]) -> S3Credentials:
    """Return the credentials that the environment names.

    Raises:
        PermissionError: the environment names none.
        OSError: their source does not answer.
    """
    if key := environment.get("AWS_ACCESS_KEY_ID"):
        return S3Credentials(
            key, environment.get("AWS_SECRET_ACCESS_KEY", ""), environment.get("AWS_SESSION_TOKEN", "")
        )
    if (file := environment.get("AWS_WEB_IDENTITY_TOKEN_FILE")) and (role := environment.get("AWS_ROLE_ARN")):
        return _assume_role(role, Path(file).read_text().strip(), environment)
    if url := _container_url(environment):
        return _read_container(url, environment)
    raise PermissionError(errno.EACCES, MISSING)


def _assume_role(role: str, token: str, environment: Mapping[str, str]) -> S3Credentials:
    region = find_region(environment)
    url = environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    query = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": environment.get("AWS_ROLE_SESSION_NAME", SESSION_NAME),
        "WebIdentityToken": token,
    }
    answer = _fetch("POST", url, data=query)
    try:
        tree = ET.fromstring(answer)  # noqa: S314  # of AWS, over TLS
    except ET.ParseError as error:
        raise _unreadable_error(answer) from error
    fields = {element.tag.rpartition("}")[2]: element.text or "" for element in tree.iter()}
    return _from_fields(fields, "SessionToken")


def _container_url(environment: Mapping[str, str]) -> str:
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    return f"{ECS_HOST}{relative}" if relative else environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")


def _read_container(url: str, environment: Mapping[str, str]) -> S3Credentials:
    file = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = Path(file).read_text().strip() if file else environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    answer = _fetch("GET", url, headers={"Authorization": token} if token else {})
    try:
        fields: Any = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _unreadable_error(answer) from error
    return _from_fields(fields if isinstance(fields, dict) else {}, "Token")


def _unreadable_error(answer: str) -> OSError:
    """Return the error of an answer that is not that of a source, such as the login page of a proxy."""
    begin = answer[:MAX_SHOWN].strip()  # what follows may be a secret
    problem = f"the source of the S3 credentials answers with something else, which begins with {begin!r}"
    return OSError(errno.EIO, f"{problem}. Check its address and the proxies of the pod")


def _fetch(method: str, url: str, **options: Any) -> str:
    try:
        answer = requests.request(method, url, timeout=REQUEST_SECONDS, **options)
    except requests.exceptions.RequestException as error:
        raise TransientError(errno.EIO, f"the source of the S3 credentials does not answer: {error}") from error
    if answer.status_code != 200:
        problem = f"the source of the S3 credentials answers with status {answer.status_code}: {answer.text[:200]}"
        if answer.status_code >= 500:
            raise TransientError(errno.EIO, problem)
        raise PermissionError(errno.EACCES, problem)
    return answer.text


def _from_fields(fields: Mapping[str, str], token: str) -> S3Credentials:
    try:
        expires = datetime.fromisoformat(fields["Expiration"])
        expires = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        return S3Credentials(fields["AccessKeyId"], fields["SecretAccessKey"], fields[token], expires)
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(errno.EIO, f"the source of the S3 credentials lacks {error}") from error


def find_region(environment: Mapping[str, str]) -> str:
    """Return the region that the environment names. Most endpoints besides AWS accept any."""
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
