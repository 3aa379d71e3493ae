"""The agent's environment: variables and the files that they name.

All errors are reported together and as text, because users see only a pod that does not start.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from trainingjob_api.problem import Problem, in_order
from trainingjob_api.world import ExpectedHardware, RunConfig

PREFIX = "TRAININGJOB_"
TERMINATION_LOG = "/dev/termination-log"
FINISH_AFTER_SECONDS = 300.0


class BrokenEnvironmentError(Exception):
    """The pod's environment is invalid. The text lists every problem, one per line."""


@dataclass(frozen=True)
class Environment:
    """The validated environment of an agent. `ca` is None for a rendezvous on loopback."""

    config: RunConfig
    rendezvous: str
    ca: Path | None
    token: Path
    pod: str
    pod_uid: str
    address: str
    slice: int
    host: int
    compile_cache: str
    snapshots: str
    expected: ExpectedHardware
    termination_log: Path
    grace_seconds: float
    finish_after_seconds: float


class Variables:
    """The agent's environment variables. Problems are collected while they are read."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._problems: list[Problem] = []

    def add_problem(self, name: str, message: str) -> None:
        """Record a problem of a variable."""
        self._problems.append(Problem(PREFIX + name, self.optional(name), message))

    def describe_problems(self) -> str:
        """Return all recorded problems, one per line; empty: none."""
        return "\n".join(f"  {problem}" for problem in in_order(self._problems))

    def optional(self, name: str, default: str = "") -> str:
        """Return a variable, or the default if it is unset or empty."""
        return self._values.get(PREFIX + name) or default

    def required(self, name: str) -> str:
        """Return a variable that must not be empty."""
        value = self.optional(name)
        if not value:
            self.add_problem(name, "must be set.")
        return value

    def count(self, name: str) -> int:
        """Return a non-negative whole number."""
        value = self.required(name)
        if value and not (value.isascii() and value.isdigit()):
            self.add_problem(name, f"is '{value}' and must be a whole number from zero on.")
        return int(value) if value.isascii() and value.isdigit() else 0

    def seconds(self, name: str, default: float) -> float:
        """Return an optional number of seconds."""
        value = self.optional(name, str(default))
        try:
            span = float(value)
        except ValueError:
            span = -1.0
        if not 0 <= span < float("inf"):
            self.add_problem(name, f"is '{value}' and must be a number of seconds, zero or more.")
        return span

    def expected(self, name: str) -> ExpectedHardware:
        """Return the expected performance of the devices. Older operators do not set it."""
        text = self.optional(name, "{}")
        try:
            return ExpectedHardware.model_validate_json(text)
        except ValidationError:
            self.add_problem(name, f"is '{text}' and must be JSON with the expected rates of a device.")
            return ExpectedHardware()

    def url(self, name: str, *, ca: str) -> str:
        """Return a server URL: https with a certificate authority, or http on loopback."""
        value = self.required(name)
        try:
            parts = urlsplit(value)
            host = parts.hostname or ""
        except ValueError:
            parts, host = urlsplit(""), ""
        if value and (parts.scheme not in {"http", "https"} or not host):
            self.add_problem(name, f"is '{value}' and must be an address such as https://operator.namespace.svc:8443.")
        elif parts.scheme == "http" and not _is_loopback(host):
            self.add_problem(name, f"is '{value}'; without https only this machine's own loopback may be used.")
        elif parts.scheme == "https" and not ca:
            self.add_problem("CA", f"must name a file with the certificate authority of {value}.")
        return value.rstrip("/")

    def config(self, name: str) -> RunConfig | None:  # None: a problem was recorded
        """Return the RunConfig from the file that a variable names."""
        path = self.required(name)
        if not path:
            return None
        try:
            return RunConfig.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            self.add_problem(name, f"names {path}, which cannot be read: {error.strerror}.")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            self.add_problem(
                name,
                f"names {path}, which this image does not understand: {where}: {first['msg']} "
                f"({error.error_count()} in all). Is the image older or newer than the operator?",
            )
        return None


def find_termination_log(values: Mapping[str, str]) -> Path:
    """Return the file that Kubernetes reads as the container's termination message."""
    return Path(Variables(values).optional("TERMINATION_LOG", TERMINATION_LOG))


def read_environment(values: Mapping[str, str]) -> Environment:
    """Return the validated environment.

    Raises:
        BrokenEnvironmentError: a variable is missing or invalid.
    """
    variables = Variables(values)
    config = variables.config("CONFIG")
    ca = variables.optional("CA")
    rendezvous = variables.url("RENDEZVOUS", ca=ca)
    token, pod, pod_uid, address = (variables.required(name) for name in ("TOKEN", "POD", "POD_UID", "ADDRESS"))
    offset, index, host = (variables.count(name) for name in ("SLICE_OFFSET", "JOB_INDEX", "HOST"))
    grace = variables.seconds("GRACE_SECONDS", config.spec.runtime.trainer_grace_seconds if config else 0.0)
    expected = variables.expected("EXPECTED")
    finish_after = variables.seconds("FINISH_AFTER_SECONDS", FINISH_AFTER_SECONDS)
    problems = variables.describe_problems()
    if config is None or problems:
        raise BrokenEnvironmentError(f"the agent cannot start, its pod's variables are wrong:\n{problems}")
    return Environment(
        config=config,
        rendezvous=rendezvous,
        ca=Path(ca) if ca else None,
        token=Path(token),
        pod=pod,
        pod_uid=pod_uid,
        address=address,
        slice=offset + index,
        host=host,
        compile_cache=variables.optional("COMPILE_CACHE"),
        snapshots=variables.optional("SNAPSHOTS"),
        expected=expected,
        termination_log=find_termination_log(values),
        grace_seconds=grace,
        finish_after_seconds=finish_after,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
