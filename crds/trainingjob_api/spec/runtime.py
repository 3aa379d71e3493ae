"""The runtime section: image, variables, resources and volumes of the pods."""

import re
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    LIST_TYPE_MAP_BY_NAME,
    LIST_TYPE_SET,
    AbsolutePath,
    Duration,
    KeyRef,
    ObjectName,
    Quantity,
    ShortName,
    Strict,
    seconds,
)
from trainingjob_api.meta import Example, Pattern, Unit, cel_rule

AGENT_GRACE_SECONDS = 5
"""Seconds of a pod's grace period that are reserved for the agent, to kill a late trainer and report it."""
AOT_MEMORY_BYTES = 1 << 30
"""Free host memory in bytes that ahead-of-time compilation needs: a small model takes 500 MB, larger models more."""
EnvName = Annotated[
    str,
    Pattern(
        r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        "a variable's name: letters, digits and `_`, no digit first",
        lambda text: re.sub(r"\W", "_", text, flags=re.ASCII),
    ),
    Field(max_length=128),
]


class EnvVar(Strict):
    """One environment variable: exactly one of `value`, `secretKeyRef` and `configMapKeyRef`."""

    name: Annotated[EnvName, Example("LOG_LEVEL")] = Field(description="Name of the environment variable.")
    value: Annotated[Annotated[str, Field(max_length=4096)] | None, Example("info")] = Field(
        default=None, description="Value as plain text, visible to every reader of the job."
    )
    secret_key_ref: Annotated[KeyRef | None, Example({"name": "keys", "key": "token"})] = Field(
        default=None, description="Reference to a key of a Secret that holds the value."
    )
    config_map_key_ref: Annotated[KeyRef | None, Example({"name": "settings", "key": "level"})] = Field(
        default=None, description="Reference to a key of a ConfigMap that holds the value."
    )

    cel_rules = (
        cel_rule(
            "[has(self.value), has(self.secretKeyRef), has(self.configMapKeyRef)].filter(given, given).size() == 1",
            "must have exactly one of `value`, `secretKeyRef` and `configMapKeyRef`.",
        ),
    )


class Resources(Strict):
    """Resources of one host's container. The plan adds the accelerators."""

    cpu: Annotated[Quantity, Unit("cores"), Example("1")] = Field(
        default="1", description="CPU request in cores. The container may use more if they are idle."
    )
    memory: Annotated[Quantity, Unit("bytes"), Example("2Gi")] = Field(
        default="2Gi", description="Memory request and limit; memory-backed volumes are added on top."
    )


class Volume(Strict):
    """PersistentVolumeClaim of the job's namespace, mounted in every host's pod."""

    name: Annotated[ShortName, Example("shared")] = Field(description="Name of the volume in the pod.")
    claim_name: Annotated[ObjectName, Example("shared")] = Field(description="Name of the PersistentVolumeClaim.")
    mount_path: Annotated[AbsolutePath, Example("/shared")] = Field(
        description="Folder in the pod at which the volume is mounted."
    )
    read_only: Annotated[bool, Example(False)] = Field(default=False, description="Mounts the volume read-only.")


class CompileCache(Strict):
    """The cache of compiled programs."""

    enabled: Annotated[bool, Example(True)] = Field(
        default=True,
        description="Keeps compiled programs between restarts; without it each new world compiles. On `cpu` the next "
        "smaller and larger sizes are compiled ahead of time.",
    )
    path: Annotated[AbsolutePath | None, Example("/shared/cache")] = Field(
        default=None, description="Folder of the compiled programs. Unset: a volume that is deleted with the pod."
    )


class Runtime(Strict):
    """The pods: an allow-list of options. All other fields of the pod are fixed and hardened."""

    image: Annotated[
        Annotated[
            str,
            Pattern(
                r"^[^\s]+$",
                "an image such as registry.example/trainer:1.0, without spaces",
                lambda text: "".join(text.split()),
            ),
            Field(min_length=1, max_length=512),
        ]
        | None,
        Example("registry.example/trainer:1.0"),
    ] = Field(default=None, description="Trainer image. Unset: the image that the operator was installed with.")
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"] | None, Example("IfNotPresent")] = Field(
        default=None, description="Pull policy of the image. Unset: the policy that the operator was installed with."
    )
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Example(["registry"])] = Field(
        default=(),
        max_length=8,
        description="Secrets of the namespace to pull the image with.",
        json_schema_extra=LIST_TYPE_SET,
    )
    service_account_name: Annotated[ObjectName | None, Example("trainer")] = Field(
        default=None,
        description="ServiceAccount of the pods; setting it requires the right to `use` it. Unset: `default`.",
    )
    env: tuple[EnvVar, ...] = Field(
        default=(),
        max_length=64,
        description="Environment variables of the trainer. Variables that describe a world or a slice are rejected.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    resources: Resources = Field(default=Resources(), description="Resources of one host's container.")
    volumes: tuple[Volume, ...] = Field(
        default=(),
        max_length=16,
        description="PersistentVolumeClaims to mount in every pod, for data and checkpoints.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    compile_cache: CompileCache = Field(
        default=CompileCache(), description="Cache of compiled programs, so that a restart does not compile."
    )
    termination_grace_period: Annotated[Duration, Example("60s")] = Field(
        default="30s",
        description="Grace period of a deleted pod, from 10s to 1h; the trainer gets all but 5 s to save and exit. "
        "GKE limits it to 15 s on spot nodes by default.",
    )

    @property
    def trainer_grace_seconds(self) -> int:
        """Return the seconds in which the trainer of a deleted pod may save and leave."""
        return seconds(self.termination_grace_period) - AGENT_GRACE_SECONDS
