"""Operator settings from environment variables, read once at startup. One error reports all invalid variables.

The Helm chart sets the variables; outside a cluster the user does. The variable names are a public interface.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from trainingjob_api.images import TRAINER_REPOSITORIES
from trainingjob_operator.core.node_signals import SIGNAL_EFFECTS, SIGNAL_SOURCES, NodeSignal
from trainingjob_operator.render.render_settings import NetworkRules
from trainingjob_operator.shell import logging_setup

PREFIX = "TRAININGJOB_"
WEBHOOK_PORT = 9443
RENDEZVOUS_PORT = 8443
METRICS_PORT = 8080
MAX_PORT = 65535
SELF_SIGNED = "self"
"""Value of `TRAININGJOB_CERTIFICATES` with which the operator issues the certificates itself."""

_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_SIGNAL_KEY = re.compile(r"[A-Za-z0-9_./-]{1,317}")
_SIGNAL_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")


class InvalidSettingsError(Exception):
    """Some variables are invalid. The message lists each variable, its value and the allowed values."""


@dataclass(frozen=True)
class Settings:
    """Operator settings. Each field has a variable: `trainer_image` is `TRAININGJOB_TRAINER_IMAGE`."""

    trainer_image: str
    trainer_images: Mapping[str, str] = field(default_factory=dict)
    """Trainer images by platform: `cpu`, `tpu` or `cuda13`. The others have `trainer_image`."""
    namespace: str = "trainingjob-system"
    """The operator's own namespace, which holds its Lease and its certificates."""
    node: str = ""
    """Node of the operator's pod. Empty: the operator runs outside a cluster, or the node is unknown."""
    pod: str = ""
    """Name of the operator's pod, and its identity in the Lease. Empty: the operator runs outside a cluster."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs the operator reconciles. Empty: all namespaces."""
    trainer_pull_policy: str = "IfNotPresent"
    elastic_workload_priority: str = ""
    """Kueue WorkloadPriorityClass of slices above a job's minimum. Empty: the same priority as the minimum."""
    node_signals: tuple[NodeSignal, ...] = ()
    """Signals of nodes that worlds save for and leave, in addition to the built-in ones."""
    service: str = "trainingjob-operator"
    """Service through which agents reach the operator; also the name of its Lease."""
    webhook_enabled: bool = True
    webhook_service: str = "trainingjob-operator-webhook"
    """Service through which the API server reaches the webhook."""
    webhook_port: int = WEBHOOK_PORT
    metrics_port: int = METRICS_PORT
    metrics_tls_port: int | None = None
    """Port of metrics over TLS. None: `metrics_port` serves them in plain HTTP."""
    metrics_authentication: bool = False
    """Whether scrapers need a bearer token with the right to read `/metrics`. Needs `metrics_tls_port`."""
    unchecked_service_accounts: bool = False
    """Whether a job may use a ServiceAccount although no webhook verified the creator's permission."""
    webhook_configuration: str = "trainingjob-operator"
    """ValidatingWebhookConfiguration into which the operator writes the CA that it issued."""
    certificates: Path | None = None
    """Folder with externally renewed tls.crt, tls.key and ca.crt. None: the operator issues certificates."""
    ca_secret: str = "trainingjob-operator-ca"  # noqa: S105  # the name of a Secret
    accelerators: Path | None = None
    """File with additional rows of the hardware table. None: the built-in table only."""
    presets: Path | None = None
    """File with additional presets. None: the built-in ones only."""
    pod_profiles: Path | None = None
    """File with the profiles of pods. None: there are none."""
    job_network: NetworkRules | None = None
    """Rules of the NetworkPolicy of each job. None: jobs have no policy."""
    log_level: str = "info"
    log_level_file: Path | None = None
    """File with the log level, which can change while the process runs. None: `log_level` stays."""
    log_format: logging_setup.Format = "json"

    @property
    def host(self) -> str:
        """Return the DNS name of the operator's Service."""
        return f"{self.service}.{self.namespace}.svc"

    @property
    def webhook_host(self) -> str:
        """Return the DNS name of the webhook's Service."""
        return f"{self.webhook_service}.{self.namespace}.svc"

    @property
    def rendezvous_url(self) -> str:
        """Return the URL to which agents report."""
        return f"https://{self.host}:{RENDEZVOUS_PORT}"


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Parse the settings from the environment; an unset or empty variable keeps its default.

    Raises:
        InvalidSettingsError: a required variable is missing, or a variable is invalid. The message lists all of them.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        variable, parse = environment_variable(setting.name), _PARSERS[setting.name]
        text = environ.get(variable, "").strip()
        if not text:
            if setting.name == "trainer_image":
                problems.append(f"{variable}: must name the image of the trainer.")
            continue
        try:
            values[setting.name] = parse(text)
        except ValueError as error:
            problems.append(f"{variable}: '{text}' {error}")
    if values.get("metrics_authentication") and "metrics_tls_port" not in values:
        variable = environment_variable("metrics_tls_port")
        problems.append(
            f"{variable}: must be set with {environment_variable('metrics_authentication')}: tokens need TLS."
        )
    if problems:
        raise InvalidSettingsError("\n".join(problems))
    return Settings(**values)


def environment_variable(field: str) -> str:
    """Return the environment variable of a field of `Settings`."""
    return f"{PREFIX}{field.upper()}"


def _name(text: str) -> str:
    if not _LABEL.match(text):
        raise ValueError("must be up to 63 lower-case letters, digits and '-'.")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(_name(name) for name in names))


def _images(text: str) -> dict[str, str]:
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    images = {platform: image for platform, _, image in pairs}
    if not all(images.values()) or not images.keys() <= TRAINER_REPOSITORIES.keys() or len(images) < len(pairs):
        raise ValueError(
            f"must be PLATFORM=IMAGE, separated by commas; each of {', '.join(TRAINER_REPOSITORIES)} once."
        )
    return images


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be 'true' or 'false'.")
    return text.lower() == "true"


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PORT:
        raise ValueError(f"must be a port from 1 to {MAX_PORT}.")
    return int(text)


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}.")
        return text

    return parse


def _folder(text: str) -> Path | None:
    if text == SELF_SIGNED:
        return None
    if not text.startswith("/"):
        raise ValueError(f"must be '{SELF_SIGNED}' or the absolute path of a folder.")
    return Path(text)


def _file(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("must be the absolute path of a file.")
    return Path(text)


def _network_rules(text: str) -> NetworkRules:
    try:
        rules = json.loads(text)
        ingress, egress = rules["ingress"], rules.get("egress")
        if not all(isinstance(rule, dict) for rule in (*ingress, *(egress or ()))):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            "must be JSON with lists of NetworkPolicy rules: `ingress`, and `egress` if limited."
        ) from error
    return NetworkRules(tuple(ingress), None if egress is None else tuple(egress))


def _node_signals(text: str) -> tuple[NodeSignal, ...]:
    try:
        return tuple(_node_signal(row) for row in json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"must be a JSON list of node signals. Each has one of {', '.join(SIGNAL_SOURCES)}. Its key has letters, "
            "digits and '-_./'. It may have a `value` of letters, digits and '-_.'. Keys have at most 317 characters, "
            f"values 63. It may have an `effect`: {', '.join(SIGNAL_EFFECTS)}. It may have `fault`: true or false."
        ) from error


def _node_signal(row: dict[str, Any]) -> NodeSignal:
    (source,) = row.keys() - {"value", "effect", "fault"}
    key, value, effect = row[source], row.get("value", ""), row.get("effect", "drain")
    if source not in SIGNAL_SOURCES or not _SIGNAL_KEY.fullmatch(key) or not _SIGNAL_VALUE.fullmatch(value):
        raise ValueError(source)
    if effect not in SIGNAL_EFFECTS:
        raise ValueError(effect)
    is_fault = row.get("fault", source == "condition")  # conditions report the health of nodes
    if not isinstance(is_fault, bool):
        raise TypeError(is_fault)
    return NodeSignal(source, key, value, effect, is_fault)


def _lower(parse: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: parse(text.lower())


_PARSERS: dict[str, Callable[[str], Any]] = {
    "trainer_image": str,
    "trainer_images": _images,
    "namespace": _name,
    "node": str,
    "pod": str,
    "namespaces": _names,
    "trainer_pull_policy": _choice(*_PULL_POLICIES),
    "elastic_workload_priority": str,
    "node_signals": _node_signals,
    "service": _name,
    "webhook_enabled": _flag,
    "webhook_service": _name,
    "webhook_port": _port,
    "metrics_port": _port,
    "metrics_tls_port": _port,
    "metrics_authentication": _flag,
    "unchecked_service_accounts": _flag,
    "webhook_configuration": str,
    "certificates": _folder,
    "ca_secret": _name,
    "accelerators": _file,
    "presets": _file,
    "pod_profiles": _file,
    "job_network": _network_rules,
    "log_level": _lower(_choice(*logging_setup.LEVELS)),
    "log_level_file": _file,
    "log_format": cast("Callable[[str], Any]", _lower(_choice(*logging_setup.FORMATS))),
}
