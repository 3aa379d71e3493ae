"""Redaction of secrets in reports: their texts go into the job's status, which more people may read.

Two kinds of text are removed: values of variables from Secrets, complete or as the end of a truncated one, and text
with the shape of a credential. Harmless text may match a shape, so no shape goes by length or randomness alone.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from trainingjob_api.pod_variables import pod_variables
from trainingjob_api.protocol import HostReport
from trainingjob_api.spec.job import TrainingJobSpec

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 6
"""Minimum length of a redacted value: shorter values are weak secrets and match parts of ordinary words."""
_NAMES = (
    r"(?:[A-Za-z0-9_.-]*(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"credential|account[_-]?key)s?|[A-Za-z0-9_.-]*token)"
)
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\A[A-Za-z0-9+/=\s\\n]*-----END [A-Z0-9 ]*PRIVATE KEY-----"),  # the beginning was truncated
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),  # a JSON Web Token
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # AWS
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),  # Google
    re.compile(r"\bya29\.[A-Za-z0-9_-]{20,}"),
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),  # Hugging Face
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),  # GitLab
    re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),  # Slack
    re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    re.compile(r"\bwandb_v1_[A-Za-z0-9_]{20,}"),
    re.compile(r"(?<=[?&]sig=)[^\s&\"']+"),  # Azure
    re.compile(r"(?<=X-Amz-Signature=)[0-9a-fA-F]+"),
    re.compile(r"(?<=X-Goog-Signature=)[0-9a-fA-F]+"),
    re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"),  # user and password in a URL
    re.compile(r"(?<=://)[^\s/@:]{20,}(?=@)"),  # a token in a URL
)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)?\s*)[^\s\"',]+")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{12,}")
_NAMED = re.compile(rf"(?i)(?<![A-Za-z0-9_.-])({_NAMES}[\"']?\s*(?:[=:]|=>)\s*[\"']?)([^\s\"',;&)}}\]]{{6,}})")
_NO_SECRET = re.compile(r"\d+(?:\.\d+)?|true|false|none|null|None|/\S*", re.IGNORECASE)
"""Values that a name such as `token` may have without being secret: a number, a flag, null, a path."""


class Redactor:
    """Removes the values of given variables, and text that looks like a credential."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Store the secret values."""
        parts = {
            part
            for value in values
            for part in (value, value.strip(), *value.splitlines(), quote(value.strip(), safe=""))
        }
        self._values = sorted((part for part in parts if len(part.strip()) >= MIN_SECRET_LENGTH), key=len, reverse=True)

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        for value in self._values:
            text = _redact_truncated(text, value)
        for shape in _SHAPES:
            text = shape.sub(REDACTED, text)
        text = _HEADER.sub(rf"\1{REDACTED}", text)
        text = _BEARER.sub(rf"\1{REDACTED}", text)
        return _NAMED.sub(lambda match: match[0] if _NO_SECRET.fullmatch(match[2]) else match[1] + REDACTED, text)

    def redact_report(self, report: HostReport) -> HostReport:
        """Return a report without secrets in its text fields."""
        changes = {name: self._redact_value(getattr(report, name)) for name in _TEXTS}
        return report.model_copy(update=changes)

    def _redact_value(self, value: object) -> object:
        if isinstance(value, str):
            return self.redact(value) if value else value
        if isinstance(value, tuple):
            return tuple(self._redact_value(item) for item in value)
        fields = {name: getattr(value, name) for name in _FIELDS if hasattr(value, name)}
        if value is None or not fields:
            return value
        redacted = {name: self.redact(text) for name, text in fields.items() if text}
        return value.model_copy(update={name: text[: len(fields[name])] for name, text in redacted.items()})  # type: ignore[attr-defined]


_TEXTS = (
    "failure",
    "broken",
    "evidence",
    "failed_save",
    "failed_copy",
    "failed_export",
    "damaged",
    "initialized_from",
    "drill_error",
)
"""Report fields with text that the trainer, a library or the kernel wrote."""
_FIELDS = ("message", "path", "value", "log", "stack", "newest", "signal")


def find_secrets(spec: TrainingJobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the values of the variables that a job takes from Secrets."""
    secret = (variable.name for _, variable in pod_variables(spec) if variable.secret_key_ref)
    return [environ[name] for name in secret if name in environ]


def _redact_truncated(text: str, value: str) -> str:
    """Return a text without the end of a secret value, whose beginning was truncated with the text."""
    for length in range(len(value) - 1, MIN_SECRET_LENGTH - 1, -1):
        if text.startswith(value[-length:]):
            return REDACTED + text[length:]
    return text
