"""Access to S3: signatures as Amazon documents them, and the credentials that the environment of a pod names."""

import errno
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
import requests

from tests.support.trainer.json_server import JsonHandler, serve
from trainingjob_trainer.store.retry import TransientError
from trainingjob_trainer.store.s3_bucket import find_endpoint
from trainingjob_trainer.store.s3_credentials import (
    S3CredentialChain,
    S3Credentials,
    find_region,
    load_credentials,
)
from trainingjob_trainer.store.s3_signature import S3Signer

DOCUMENTED = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
SIGNATURES = {
    "lifecycle=": "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    "max-keys=2&prefix=J": "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
}
"""Signatures of the examples in Amazon's documentation, by query."""


@pytest.mark.parametrize(("query", "signature"), SIGNATURES.items())
def test_requests_are_signed_as_documented(query: str, signature: str) -> None:
    signer = S3Signer("us-east-1", lambda: DOCUMENTED, lambda: datetime(2013, 5, 24, tzinfo=UTC))

    request = requests.Request("GET", f"https://examplebucket.s3.amazonaws.com/?{query}", auth=signer).prepare()

    assert request.headers["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )


def test_a_session_token_is_signed() -> None:
    signer = S3Signer("us-east-1", lambda: DOCUMENTED._replace(token="session"))

    request = requests.Request("PUT", "https://examplebucket.s3.amazonaws.com/a", data=b"x", auth=signer).prepare()

    assert request.headers["x-amz-security-token"] == "session"
    assert "x-amz-security-token" in request.headers["Authorization"]


class Source(JsonHandler):
    """A source of credentials: the container endpoint, and the security token service."""

    asked: ClassVar[list[str]] = []
    status: ClassVar[int] = 200
    expires: ClassVar[str] = "2100-01-01T00:00:00Z"
    answer: ClassVar[str] = ""
    """What it answers instead of keys. Empty: keys."""

    def do_GET(self) -> None:  # noqa: N802  # the name of the library
        self.asked.append(self.headers.get("Authorization", ""))
        keys = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "session", "Expiration": self.expires}
        if self.answer:
            self.send_text(self.answer)
        else:
            self.send_json(keys, self.status)

    def do_POST(self) -> None:  # noqa: N802  # the name of the library
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append(json.dumps({name: form[name][0] for name in ("Action", "RoleArn", "WebIdentityToken")}))
        keys = f"<AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><Expiration>{self.expires}"
        body = (
            f'<A xmlns="urn:x"><Credentials>{keys}</Expiration><SessionToken>session</SessionToken></Credentials></A>'
        )
        self.send_text(self.answer or body)

    def send_text(self, body: str) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def source() -> Iterator[str]:
    Source.asked.clear()
    Source.status, Source.answer = 200, ""
    Source.expires = "2100-01-01T00:00:00Z"
    with serve(Source) as url:
        yield url


FETCHED = S3Credentials("key", "secret", "session", datetime(2100, 1, 1, tzinfo=UTC))


def test_static_keys_come_first() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ROLE_ARN": "role"}

    assert load_credentials(environment) == S3Credentials("a", "b")
    assert load_credentials(environment | {"AWS_SESSION_TOKEN": "c"}) == S3Credentials("a", "b", "c")


def test_a_service_account_assumes_its_role(source: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("identity\n")
    environment = {
        "AWS_ROLE_ARN": "role",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL_STS": source,
    }

    assert load_credentials(environment) == FETCHED
    assert [json.loads(asked) for asked in Source.asked] == [
        {"Action": "AssumeRoleWithWebIdentity", "RoleArn": "role", "WebIdentityToken": "identity"}
    ]


def test_a_pod_identity_is_read_from_its_endpoint(source: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("identity\n")
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{source}/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }

    assert load_credentials(environment) == FETCHED
    assert Source.asked == ["identity"]


def test_credentials_are_fetched_again_before_they_expire(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE", raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", source)
    chain = S3CredentialChain()
    Source.expires = (datetime.now(UTC) + timedelta(minutes=4)).isoformat()
    chain.get()
    Source.expires = "2100-01-01T00:00:00Z"

    assert [chain.get(), chain.get()] == [FETCHED, FETCHED]
    assert len(Source.asked) == 2
    chain.refresh()
    chain.get()
    assert len(Source.asked) == 3


def test_missing_credentials_are_explained() -> None:
    with pytest.raises(PermissionError, match=r"no credentials for S3 in the pod: give its service account a role"):
        load_credentials({})


@pytest.mark.parametrize(("status", "kind"), [(503, TransientError), (403, PermissionError)])
def test_a_source_that_refuses_is_an_error(source: str, status: int, kind: type[OSError]) -> None:
    Source.status = status

    with pytest.raises(kind, match=f"answers with status {status}"):
        load_credentials({"AWS_CONTAINER_CREDENTIALS_FULL_URI": source})


def test_a_source_without_its_fields_is_an_error(source: str) -> None:
    Source.expires = "never"

    with pytest.raises(OSError, match="the source of the S3 credentials lacks") as caught:
        load_credentials({"AWS_CONTAINER_CREDENTIALS_FULL_URI": source})
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("variable", ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL_STS"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("<html>Log in<br>", "answers with something else, which begins with '<html>Log in<br'. Check its address"),
        ("[" * 99_999, "answers with something else"),
        ("[]", "of the S3 credentials"),
        ('{"Expiration": 5}', "of the S3 credentials"),
        ("<A/>", "of the S3 credentials"),
    ],
)
def test_a_source_that_answers_with_something_else_is_an_error(
    source: str, tmp_path: Path, variable: str, answer: str, words: str
) -> None:
    """Of a proxy in between, for example."""
    (tmp_path / "token").write_text("identity")
    role = {"AWS_ROLE_ARN": "role", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    environment = {variable: source} | (role if variable == "AWS_ENDPOINT_URL_STS" else {})
    Source.answer = answer

    with pytest.raises(OSError) as caught:  # noqa: PT011  # its text is compared below
        load_credentials(environment)
    assert words in str(caught.value)
    assert caught.value.errno == errno.EIO


def test_an_expiry_without_a_zone_is_in_utc(source: str) -> None:
    Source.expires = "2100-01-01T00:00:00"

    assert load_credentials({"AWS_CONTAINER_CREDENTIALS_FULL_URI": source}) == FETCHED


def test_region_and_endpoint_come_from_the_environment() -> None:
    assert [find_region(one) for one in ({}, {"AWS_DEFAULT_REGION": "a"}, {"AWS_REGION": "b"})] == [
        "us-east-1",
        "a",
        "b",
    ]
    assert find_endpoint({}) == ""
    assert find_endpoint({"AWS_ENDPOINT_URL": "a", "AWS_ENDPOINT_URL_S3": "b"}) == "b"
