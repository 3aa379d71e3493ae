"""No secret leaves a host in what its agent reports; what only looks a little like one stays."""

import pytest

from tests.support.builders import make_report, spec_manifest
from trainingjob_agent.redaction import REDACTED, Redactor, find_secrets
from trainingjob_api.protocol import Damage, Diagnostics, FailedSave, Failure, FailureReason, ProcessState
from trainingjob_api.spec.job import TrainingJobSpec

KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
LETTERS = "Abcdefghij0123456789KLMNOPQRST"
SECRETS = {
    "a JSON Web Token": ("token eyJ" + LETTERS + "." + LETTERS + "." + LETTERS, LETTERS),
    "a bearer header": (f"Authorization: Bearer {LETTERS}", LETTERS),
    "a bearer header in a dict": (f"{{'authorization': 'Bearer {LETTERS}'}}", LETTERS),
    "a basic header": (f"authorization: Basic {LETTERS}==", LETTERS),
    "a header without a scheme": (f"Proxy-Authorization: {LETTERS}", LETTERS),
    "a bearer in curl's words": (f"> bearer {LETTERS}", LETTERS),
    "a private key": (f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----", KEY),
    "an RSA key": (f"x -----BEGIN RSA PRIVATE KEY-----\n{KEY}\n-----END RSA PRIVATE KEY----- y", KEY),
    "an OpenSSH key that is cut": (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY}", KEY),
    "a key without its beginning": (f"{KEY}\n{KEY}\n-----END EC PRIVATE KEY-----", KEY),
    "an AWS access key": ("key AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "a temporary AWS key": ("ASIAIOSFODNN7EXAMPLE!", "ASIAIOSFODNN7EXAMPLE"),
    "an AWS secret": (f"aws_secret_access_key = {LETTERS}/{LETTERS}", LETTERS),
    "an AWS secret of the environment": (f"AWS_SECRET_ACCESS_KEY={LETTERS}", LETTERS),
    "a signed address of S3": (f"https://b.s3/x?X-Amz-Signature={'0123456789abcdef' * 4}", "0123456789abcdef"),
    "a signed address of Google": (f"https://x/y?X-Goog-Signature={'0123456789abcdef' * 4}", "0123456789abcdef"),
    "a signed address of Azure": (f"https://x/y?sv=1&sig={LETTERS}%3D", LETTERS),
    "a Google API key": ("AIza" + LETTERS + "abcde", LETTERS),
    "a Google access token": ("ya29." + LETTERS, LETTERS),
    "a Hugging Face token": ("hf_" + LETTERS, LETTERS),
    "a GitHub token": ("ghp_" + LETTERS, LETTERS),
    "a fine-grained GitHub token": ("github_pat_" + LETTERS, LETTERS),
    "a GitLab token": ("glpat-" + LETTERS, LETTERS),
    "a Slack token": ("xoxb-" + LETTERS, LETTERS),
    "an API key of a model": ("sk-" + LETTERS, LETTERS),
    "a Weights & Biases key": ("WANDB_API_KEY: 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    "a new Weights & Biases key": ("wandb_v1_" + LETTERS, LETTERS),
    "a password in an address": (f"postgres://alice:{LETTERS}@db:5432/x", LETTERS),
    "a token in an address": (f"https://{LETTERS}@github.com/x/y", LETTERS),
    "a password": (f"password={LETTERS}", LETTERS),
    "a password in JSON": (f'{{"db_password": "{LETTERS}"}}', LETTERS),
    "a client secret": (f"client_secret: '{LETTERS}'", LETTERS),
    "a token by its name": (f"my.auth-token={LETTERS}", LETTERS),
    "a storage account's key": (f"AccountName=x;AccountKey={LETTERS}==;", LETTERS),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS.keys())
def test_texts_with_the_form_of_a_secret_are_redacted(text: str, secret: str) -> None:
    reported = Redactor().redact(text)

    assert secret not in reported
    assert REDACTED in reported


HARMLESS = (
    'File "/opt/venv/lib/python3.12/site-packages/jax/_src/xla_bridge.py", line 5, in __getattr__',
    "ValueError: vocabSize is 32000 and the tokenizer has 32768 tokens",
    "tokens per second=123456.7 token=1234567",
    "tokenizer: /shared/tokenizer.json",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "connecting to http://10.0.0.1:5000/x and https://host.example:8443",
    "the secret is out; no password was given",
    "spec.runtime.env[0].secretKeyRef.name: 'wandb' is not found",
    "eyJ is how a token begins",
    "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_are_not_redacted(text: str) -> None:
    assert Redactor(["short", "", " \n"]).redact(text) == text


VALUE = "correct horse/battery+staple"
FORMS = {
    "as it is": VALUE,
    "within words": f"no such user {VALUE}!",
    "twice": f"{VALUE} {VALUE}",
    "as an address has it": "x=correct%20horse%2Fbattery%2Bstaple",
    "its end, where a log begins": "battery+staple\nTraceback",
    "with a line end after it": f"{VALUE}\n",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_the_value_of_a_variable_that_comes_from_a_secret_is_taken_out(text: str) -> None:
    reported = Redactor([f"{VALUE}\n"]).redact(text)

    assert REDACTED in reported
    assert "staple" not in reported


def test_every_line_of_a_value_is_taken_out() -> None:
    assert Redactor(["first line\nsecond line"]).redact("x second line y") == f"x {REDACTED} y"


def test_the_variables_that_come_from_secrets_are_known_by_the_spec() -> None:
    reference = {"name": "s", "key": "k"}
    env = [
        {"name": "PLAIN", "value": "plain-value"},
        {"name": "SECRET", "secretKeyRef": reference},
        {"name": "MISSING", "secretKeyRef": reference},
        {"name": "OPEN", "configMapKeyRef": reference},
    ]

    spec = TrainingJobSpec.model_validate(spec_manifest(runtime={"env": env}))
    assert find_secrets(spec, {"PLAIN": "plain-value", "SECRET": "top", "OPEN": "open"}) == ["top"]


def test_the_secret_of_a_section_is_known_too() -> None:
    tracker = {"project": "research", "apiKey": {"secretKeyRef": {"name": "keys", "key": "wandb"}}}
    spec = TrainingJobSpec.model_validate(spec_manifest(metrics={"wandb": tracker}))

    assert find_secrets(spec, {"WANDB_API_KEY": VALUE, "OTHER": "open"}) == [VALUE]


def test_every_text_of_a_report_is_without_secrets() -> None:
    failure = Failure(reason=FailureReason.CRASH, message=VALUE, path=VALUE, value=VALUE, log=VALUE, signal=VALUE)
    report = make_report(
        failure=failure,
        broken=failure,
        evidence=Diagnostics(state=ProcessState.RUNNING, cores=0.0, entered=1, newest=VALUE, stack=VALUE),
        failed_save=FailedSave(step=1, message=VALUE),
        failed_copy=FailedSave(step=1, message=VALUE),
        failed_export=FailedSave(step=1, message=VALUE),
        damaged=(Damage(step=1, message=VALUE),),
        initialized_from=VALUE,
        drill_error=VALUE,
    )

    reported = Redactor([VALUE]).redact_report(report)

    assert VALUE not in reported.model_dump_json()
    assert reported.model_dump_json().count(REDACTED) == 18
    assert Redactor([VALUE]).redact_report(make_report()) == make_report()


def test_a_text_is_not_longer_than_it_may_be_for_being_redacted() -> None:
    failure = Failure(reason=FailureReason.CRASH, message="abcdef " * 146)

    reported = Redactor(["abcdef"]).redact_report(make_report(failure=failure))

    assert reported.failure
    assert len(reported.failure.message) <= 1024
