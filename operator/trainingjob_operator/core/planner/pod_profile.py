"""Pod profiles: what administrators add to the pods of jobs, so that they reach the devices and networks of a node.

A profile is a part of a pod in the words of Kubernetes. Users choose one by name and cannot write one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

type PodPart = dict[str, Any]


@dataclass(frozen=True)
class PodProfile:
    """One profile. Its parts are JSON texts, so that a profile is hashable and cannot be changed."""

    name: str
    metadata_json: str = "{}"
    """Annotations and labels of the pods."""
    spec_json: str = "{}"
    """Fields of the pods' spec. Lists are added to those of the operator; other values replace them, and null removes
    them, as in a JSON merge patch (RFC 7396)."""
    container_json: str = "{}"
    """Fields of the trainer's container, added like those of the spec."""
    accelerators: tuple[str, ...] = ()
    """Accelerators whose jobs get the profile without naming it."""
    network: float = 0.0
    """Bytes per second that a device sends and receives between slices and hosts. 0: the accelerator's own rate."""
    source: str = ""
    """Where the provider documents it."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs may have it. Empty: all."""

    def is_allowed_in(self, namespace: str) -> bool:
        """Return whether jobs of a namespace may have the profile. An empty namespace is unknown, and may."""
        return not self.namespaces or not namespace or namespace in self.namespaces

    @property
    def metadata(self) -> PodPart:
        """Return a copy of the annotations and labels."""
        return _load(self.metadata_json)

    @property
    def spec(self) -> PodPart:
        """Return a copy of the fields of the pods' spec."""
        return _load(self.spec_json)

    @property
    def container(self) -> PodPart:
        """Return a copy of the fields of the trainer's container."""
        return _load(self.container_json)

    @property
    def for_preparation(self) -> "PodProfile":
        """Return the profile of pods that tokenize text: the users of the pod, without devices and networks."""
        users = {key: value for key, value in self.spec.items() if key == "securityContext"}
        return PodProfile(self.name, spec_json=dump_part(users))


def dump_part(part: Mapping[str, Any]) -> str:
    """Return a part of a pod as the text that a profile holds: equal parts have equal texts."""
    return json.dumps(part, sort_keys=True, separators=(",", ":"))


def _load(text: str) -> PodPart:
    part: PodPart = json.loads(text)
    return part
