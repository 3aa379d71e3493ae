"""The operator accepts a token without a review only if the issuer signed it for this audience, this time and a pod."""

import base64
import hashlib
import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.signed_tokens import (
    CONFIGURATION,
    ISSUER,
    ec_jwk,
    encode,
    key_set,
    make_binding,
    make_claims,
    rsa_jwk,
    rsa_key,
    sign,
    sign_with_curve,
)
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.shell.account_tokens import (
    Account,
    Issuer,
    PodClaims,
    parse_issuer,
    parse_token,
    verify_token,
)

NOW = 1_000_000.0
CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ACCEPTED = PodClaims(Account("research", "default", "account-uid", "rsa"), "llama-0", "pod-uid")


def issuer() -> Issuer:
    found = parse_issuer(CONFIGURATION, key_set(*map(ec_jwk, CURVES)))
    assert found is not None
    return found


def verify(token: str) -> PodClaims | None:
    parsed = parse_token(token)
    return parsed and verify_token(parsed, issuer(), TOKEN_AUDIENCE, NOW)


def test_token_of_a_pod_is_verified() -> None:
    assert verify(sign(make_claims())) == ACCEPTED


@pytest.mark.parametrize(("curve", "algorithm"), CURVES.items())
def test_curves_of_the_api_server_are_known(curve: str, algorithm: str) -> None:
    found = verify(sign_with_curve(make_claims(), curve, algorithm))

    assert found is not None
    assert found.account.key_id == curve


def forge_with_public_key() -> str:
    """Return a token whose signature is an HMAC with the issuer's public key, which all pods can read."""
    public = rsa_key().public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    signed = f"{encode({'alg': 'HS256', 'kid': 'rsa'})}.{encode(make_claims())}"
    return f"{signed}.{encode(hmac.digest(public, signed.encode(), hashlib.sha256))}"


def change_claims(token: str, claims: dict[str, Any]) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{encode(claims)}.{signature}"


def pad_signature() -> str:
    """Return a token of a curve with a zero before the second number of its signature."""
    signed, _, signature = sign_with_curve(make_claims(), "P-256", "ES256").rpartition(".")
    numbers = base64.urlsafe_b64decode(signature + "==")
    return f"{signed}.{encode(numbers[:32] + bytes(1) + numbers[32:])}"


VALID = sign(make_claims())
ATTACKS = {
    "another pod under a signature": change_claims(
        VALID, make_claims(**{"kubernetes.io": make_binding(pod={"name": "llama-1", "uid": "other-uid"})})
    ),
    "another key under a known ID": sign(make_claims(), key=rsa_key(1)),
    "an unknown key": sign(make_claims(), {"kid": "unknown"}, rsa_key(1)),
    "a key in the token": sign(make_claims(), {"jwk": rsa_jwk(rsa_key(1))}, rsa_key(1)),
    "the address of a key": sign(make_claims(), {"jku": "https://example.com"}),
    "no key": sign(make_claims(), {"kid": None}),
    "a list of keys": sign(make_claims(), {"kid": ["rsa"]}),
    "no algorithm": sign(make_claims(), {"alg": "none"}),
    "no algorithm and no signature": f"{encode({'alg': 'none', 'kid': 'rsa'})}.{encode(make_claims())}.",
    "an algorithm in capitals": sign(make_claims(), {"alg": "NONE"}),
    "a list of algorithms": sign(make_claims(), {"alg": ["RS256"]}),
    "an HMAC with the public key": forge_with_public_key(),
    "another algorithm of that key": sign(make_claims(), {"alg": "PS256"}),
    "the algorithm of another key": sign(make_claims(), {"alg": "ES256"}),
    "a key of another type": sign(make_claims(), {"kid": "P-256"}),
    "a curve's key with another hash": sign_with_curve(make_claims(), "P-256", "ES384"),
    "a curve's signature of another length": sign(make_claims(), {"alg": "ES256", "kid": "P-256"}),
    "a curve's signature with another byte": pad_signature(),
    "an extension that must be understood": sign(make_claims(), {"crit": ["exp"]}),
    "no signature": VALID.rpartition(".")[0] + ".",
    "a signature of other characters": VALID.rpartition(".")[0] + ".é!",
    "four parts": f"{VALID}.x",
    "two parts": VALID.rpartition(".")[0],
    "claims that are no JSON": sign(b"{"),
    "claims that are a list": sign(b"[]"),
    "claims of great depth": sign(b"[" * 9000),
    "a number of many digits": sign(b'{"exp":' + b"9" * 5000 + b"}"),
    "another audience": sign(make_claims(aud=[ISSUER])),
    "no audience": sign(make_claims(aud=None)),
    "an audience that contains ours as text": sign(make_claims(aud=f"x{TOKEN_AUDIENCE}")),
    "another issuer": sign(make_claims(iss="https://example.com")),
    "no issuer": sign(make_claims(iss=None)),
    "expired": sign(make_claims(exp=int(NOW))),
    "no end": sign(make_claims(exp=None)),
    "an end as text": sign(make_claims(exp="9999999999")),
    "not valid yet": sign(make_claims(nbf=int(NOW) + 1)),
    "no beginning": sign(make_claims(nbf=None)),
    "another subject": sign(make_claims(sub="system:serviceaccount:research:other")),
    "a subject of another namespace": sign(make_claims(sub="system:serviceaccount:private:default")),
    "no binding": sign(make_claims(**{"kubernetes.io": None})),
    "bound to no pod": sign(make_claims(**{"kubernetes.io": make_binding(pod=None)})),
    "bound to a pod without a UID": sign(make_claims(**{"kubernetes.io": make_binding(pod={"name": "llama-0"})})),
    "bound to a Secret too": sign(make_claims(**{"kubernetes.io": make_binding(secret={"name": "s", "uid": "u"})})),
    "an account without a UID": sign(
        make_claims(**{"kubernetes.io": make_binding(serviceaccount={"name": "default"})})
    ),
}


@pytest.mark.parametrize("token", ATTACKS.values(), ids=ATTACKS.keys())
def test_other_tokens_need_a_review(token: str) -> None:
    assert verify(token) is None


def test_last_second_of_a_token_is_valid() -> None:
    assert verify(sign(make_claims(nbf=int(NOW), exp=int(NOW) + 1))) == ACCEPTED


UNUSABLE = {
    "short": rsa_jwk(rsa_key(bits=1024)),
    "for encryption": rsa_jwk(rsa_key(), use="enc"),
    "without an ID": rsa_jwk(rsa_key(), kid=None),
    "an HMAC key": {"kty": "oct", "kid": "a", "k": "c2VjcmV0"},
    "an unknown curve": ec_jwk("P-256", crv="secp256k1"),
    "a curve that is a list": ec_jwk("P-256", crv=["P-256"]),
    "no point of the curve": ec_jwk("P-256", x="AQ"),
    "without a modulus": rsa_jwk(rsa_key(), n=""),
    "a modulus of great length": rsa_jwk(rsa_key(), n="_" * 4000),
    "a modulus of other characters": rsa_jwk(rsa_key(), n="!" * 400),
    "an even exponent": rsa_jwk(rsa_key(), e="Ag"),
}


@pytest.mark.parametrize("key", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_key_is_left_out(key: dict[str, Any]) -> None:
    assert parse_issuer(CONFIGURATION, {"keys": [key]}) is None


@pytest.mark.parametrize(
    ("configuration", "keys"),
    [({}, key_set()), ([], key_set()), (CONFIGURATION, []), (CONFIGURATION, {"keys": "x"}), ({"issuer": 1}, key_set())],
)
def test_documents_of_another_shape_have_no_issuer(configuration: Any, keys: Any) -> None:
    assert parse_issuer(configuration, keys) is None
