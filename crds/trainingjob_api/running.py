"""Run-time sections of the spec: checkpoints, elasticity, metrics, pods and their scheduling."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    LIST_TYPE_MAP_BY_NAME,
    LIST_TYPE_SET,
    AbsolutePath,
    Duration,
    Label,
    LabelKey,
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


class Save(Strict):
    """When to save."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        default=500, description="Steps between two saves. The last step and every planned change save too."
    )
    every: Duration | None = Field(
        default=None,
        description="Longest time without a save beside that, however long steps take. A save that takes longer is "
        "followed by the next one at once. Unset: steps alone decide.",
    )


class KeepBest(Strict):
    """The steps with the lowest loss on a held-out text."""

    evaluation: ShortName = Field(description="Name of the evaluation whose loss decides.")
    count: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="How many of the steps with the lowest loss to keep."
    )


class Keep(Strict):
    """Checkpoint retention."""

    last: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="How many of the newest steps to keep.")
    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="Keep every step that is a multiple of this for good. Unset: none."
    )
    best: KeepBest | None = Field(
        default=None,
        description="Keep the best steps too. A step whose evaluation makes it one of them is saved right after it. "
        "Unset: evaluations decide nothing.",
    )


class Snapshots(Strict):
    """Snapshots of the state in host memory. They survive the program, but not its pod."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None,
        description="Steps between two snapshots: the most that are lost with slices whose shards others hold too. "
        "Unset: by the plan's estimate as few as take 0.1 % of the time, or up to 1 % where checkpoints are close. If "
        "a host measures that they take more than 1 %, twice as many from then on, and so forth.",
    )


class Backup(Strict):
    """Copies of checkpoints on a second store, which is slower and survives a loss of the first."""

    uri: AbsolutePath = Field(
        description="A folder of the job's own on another volume of `runtime.volumes`, at least two levels deep. All "
        "hosts must see the same files there."
    )
    every: Duration = Field(
        default="1h",
        description="Time between the beginnings of two copies. The first step that is saved after it is copied; so is "
        "the first one of each world, and the last one of all.",
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="How many of the newest copies stay when newer ones are made."
    )


class InitializeFrom(Strict):
    """Initial parameters from another job's checkpoint, for a job without own checkpoints."""

    uri: AbsolutePath = Field(
        description="The folder that was `checkpoint.uri` of the job that saved them. It is only read."
    )
    step: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="The saved step to take. Unset: the newest one that proves whole."
    )
    allow_partial: bool = Field(
        default=False,
        description="Take the parameters that both models have, and begin with random ones for those that the saved "
        "step lacks. Those of another shape are refused in any case. Without it the models must have the same ones.",
    )


class Checkpoint(Strict):
    """Checkpoint storage. All hosts must see the same files there."""

    uri: AbsolutePath = Field(
        description="A folder on shared storage that `runtime.volumes` mounts, at least two levels deep."
    )
    save: Save = Field(default=Save(), description="When a checkpoint is written.")
    keep: Keep = Field(default=Keep(), description="Which checkpoints stay when newer ones are written.")
    fail_after: Duration = Field(
        default="1h",
        description="How long saves may fail, one after the other, before the job does. Until then it trains on, tries "
        "again, and the condition Degraded says so.",
    )
    snapshots: Snapshots | None = Field(
        default=None,
        description="Snapshots in the memory of the hosts, which a smaller world goes on from. Unset: none are taken.",
    )
    readers: Literal["allHosts", "oneReplica"] = Field(
        default="allHosts",
        description="Which hosts read a saved step when a world begins. `allHosts`: each its own part. `oneReplica`: "
        "of hosts with the same part, as the `data` axis makes them, only the first. They give it to the others over "
        "the network, which spares the storage where many hosts begin at once.",
    )
    backup: Backup | None = Field(
        default=None,
        description="Copies of saved steps on a second store, which training goes on from where `uri` has lost them. "
        "Unset: none are made.",
    )
    initialize_from: InitializeFrom | None = Field(
        default=None,
        description="Begin with the parameters of another job; the optimizer, the data and the steps begin anew. Once "
        "this job has saved a step, that one counts. Unset: begin with random ones.",
    )
    takeover: bool = Field(
        default=False,
        description="Go on from the checkpoints of another job in this folder, and own the folder from now on. "
        "Without it a folder that another job owns is refused.",
    )


class Elastic(Strict):
    """Elasticity: how the job reacts to lost and recovered slices."""

    policy: Literal["shrink", "wait", "auto"] = Field(
        default="shrink",
        description="What follows when slices are lost and enough are left. `shrink`: train on at once with those. "
        "`wait`: train on when there are as many slices as before, at the latest after `shrinkAfter` with those there "
        "are. `auto`: wait only as long as that is expected to cost less training than two restarts, by how long this "
        "job's repairs and restarts took so far. Planned changes wait for nothing.",
    )
    shrink_after: Duration = Field(
        default="10m",
        description="With `policy: wait`: how long a repair is waited for; with `auto` at most. Choose it longer than "
        "a repair takes, and no longer than the steps of a smaller world are worth giving up.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=10000)] = Field(
        default=10,
        description="Failures of the training program before the job fails, over its whole life. What machines, the "
        "network and storage do, lost nodes, planned changes and suspensions never count.",
    )
    max_restarts_without_commit: Annotated[int, Field(ge=1, le=10000)] = Field(
        default=5,
        description="Failures in a row, of the training program or of what it runs on (devices, the network, storage, "
        "hosts that hang), without a newly saved step in between, before the job fails. From the second of them on, "
        "each restart waits longer than the one before. Lost nodes, planned changes and suspensions never count.",
    )
    bad_nodes: Literal["avoid", "report"] = Field(
        default="avoid",
        description="What follows when worlds end twice within a day for the same one node, while the others are well. "
        "`avoid`: a slice above the minimum is made anew without that node, as long as there is another. `report`: an "
        "event alone asks for the node to be looked at, as it does for a slice of the minimum in any case.",
    )
    grow_cooldown: Duration = Field(
        default="1m", description="Shortest time between a change of size and the next growth."
    )
    silence_after: Duration = Field(
        default="4s",
        description="A host that sends no heartbeat for this long is silent. Silence shrinks the job only "
        "when its peers stop progressing too, or its node is not ready.",
    )
    hang_after: Duration | None = Field(
        default=None,
        description="A world whose hosts all report and that makes no step for this long hangs, or for ten times its "
        "median step where that is longer. The host that the others wait for is named, and all start again from the "
        "newest checkpoint. Unset: 30s, or twice `silenceAfter` where that is longer.",
    )
    shadow_world: bool = Field(
        default=False,
        description="Let the processes of the next smaller world wait beside the training ones, connected and with "
        "their programs loaded, so that they go on within a step when a slice is lost. Only on `cpu`: elsewhere one "
        "process owns the devices. They take memory of `runtime.resources.memory`: about 220 MB for a small model.",
    )
    drills: Literal["refused", "allowed"] = Field(
        default="refused",
        description="Whether `kubectl trainingjob drill` may make this job suffer faults, to measure how it recovers.",
    )


class Metrics(Strict):
    """Metrics that the trainer writes under `checkpoint.uri`/metrics."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10,
        description="Steps between two lines of `metrics.jsonl`. Process 0 writes them: where it dies right after a "
        "step that other hosts keep in memory, the line of that step is missing.",
    )
    tensorboard: bool = Field(default=True, description="Write TensorBoard event files too.")


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


class Toleration(Strict):
    """A toleration as in a pod's spec."""

    key: LabelKey | None = Field(default=None, description="Taint key. Unset with `Exists`: every taint.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="`Equal` tolerates a taint with this `value`, `Exists` one with any."
    )
    value: Label | None = Field(default=None, description="Taint value, for `Equal`.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect. Unset: every effect."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86400)] | None = Field(
        default=None, description="For `NoExecute`: how long the pod stays. Unset: for good."
    )


class Scheduling(Strict):
    """Where the pods may run, and the queue in which they wait."""

    queue_name: ObjectName | None = Field(default=None, description="A Kueue LocalQueue of the namespace.")
    priority_class_name: ObjectName | None = Field(
        default=None, description="The PriorityClass by which pods are scheduled and preempted."
    )
    node_selector: dict[LabelKey, Label] = Field(
        default={}, max_length=32, description="Labels that a node must carry to run a pod of the job."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints the pods tolerate.")
    exclusive_topology: LabelKey | None = Field(
        default=None,
        description="A node label: all hosts of a slice share one value of it, and no two slices do. Unset: the "
        "accelerator's own where a slice has several hosts (GKE's node pools), none on `cpu`.",
    )
