"""The runtime section: image, variables, resources and volumes of the pods."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    LIST_TYPE_MAP_BY_NAME,
    LIST_TYPE_SET,
    AbsolutePath,
    Duration,
    ObjectName,
    Quantity,
    ShortName,
    Strict,
    seconds,
)

AGENT_GRACE_SECONDS = 5
"""Seconds of a pod's grace period that are reserved for the agent, to kill a late trainer and report it."""
AOT_MEMORY_BYTES = 1 << 30
"""Free host memory in bytes that ahead-of-time compilation needs: a small model takes 500 MB, larger models more."""
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", max_length=128)]


class KeyRef(Strict):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap, in the namespace of the job.")
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253)] = Field(
        description="Which entry of its data holds the value."
    )


class EnvVar(Strict):
    """One environment variable: exactly one of `value`, `secretKeyRef` and `configMapKeyRef`."""

    name: EnvName = Field(description="What the variable is called in the trainer's environment.")
    value: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="The value as plain text, which everybody who reads the job sees."
    )
    secret_key_ref: KeyRef | None = Field(default=None, description="Take the value from a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="Take the value from a ConfigMap.")


class Resources(Strict):
    """Resources of one host's container. The plan adds the accelerators."""

    cpu: Quantity = Field(
        default="1", description="CPU cores that it is promised. It may use more where they lie idle."
    )
    memory: Quantity = Field(
        default="2Gi", description="Memory that it is promised and held to; memory volumes are added to it."
    )


class Volume(Strict):
    """A PersistentVolumeClaim of the job's namespace, mounted in every host's pod."""

    name: ShortName = Field(description="Names the volume in the pod.")
    claim_name: ObjectName = Field(description="The PersistentVolumeClaim.")
    mount_path: AbsolutePath = Field(description="The folder at which the pods see the volume.")
    read_only: bool = Field(default=False, description="Let the pods read the volume, and never write to it.")


class CompileCache(Strict):
    """The cache of compiled programs."""

    enabled: bool = Field(
        default=True,
        description="Keep compiled programs between restarts. Without it each new world compiles. On `cpu` those of "
        "the next smaller and larger size are compiled too while the job trains, in CPU time that is left over.",
    )
    path: AbsolutePath | None = Field(
        default=None, description="A folder to keep them in. Unset: a volume that lives as long as the pod."
    )


class Runtime(Strict):
    """The pods: an allow-list of options. All other fields of the pod are fixed and hardened."""

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")] | None = Field(
        default=None, description="The trainer image. Unset: the one that the operator was installed with."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When to pull the image. Unset: as the operator was installed to."
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        default=(),
        max_length=8,
        description="Secrets of the namespace that the image is pulled with.",
        json_schema_extra=LIST_TYPE_SET,
    )
    service_account_name: ObjectName | None = Field(
        default=None, description="The pods' ServiceAccount. Naming one needs the right to `use` it. Unset: `default`."
    )
    env: tuple[EnvVar, ...] = Field(
        default=(),
        max_length=64,
        description="Environment variables of the trainer, but none that say what a world or a slice is.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    resources: Resources = Field(default=Resources(), description="Resources of one host's container.")
    volumes: tuple[Volume, ...] = Field(
        default=(),
        max_length=16,
        description="Claims to mount in every pod, for data and checkpoints.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    compile_cache: CompileCache = Field(
        default=CompileCache(), description="Where compiled programs are kept, so that a restart does not compile."
    )
    termination_grace_period: Duration = Field(
        default="30s",
        description="How long a pod that is deleted may take to save and leave, from 10s to 1h. The trainer has all "
        "of it but 5 s, and what it has not saved by then is lost. GKE gives pods on spot machines 15 s at most, "
        "where the node pool does not extend it.",
    )

    @property
    def trainer_grace_seconds(self) -> int:
        """Return the seconds in which the trainer of a deleted pod may save and leave."""
        return seconds(self.termination_grace_period) - AGENT_GRACE_SECONDS
