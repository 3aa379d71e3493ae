"""A world: the hosts that currently train together, and the layout of the program over them.

The operator forms a world, agents receive it, and the trainer builds its mesh from it. The number of a world is its
generation: a higher generation replaces a lower one. A process belongs to one generation for its whole life.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Open, Strict
from trainingjob_api.live import LiveFields, with_live_fields
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import OffloadedItem, Remat
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.training import MAX_BATCH_PHASES

MAX_COUNT = 2**53
"""The largest whole number that every JSON reader keeps exactly."""
MAX_MEMBERS = 16_384
MAX_SPANS = 1024
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Field(max_length=253)]
"""The name of a Kubernetes object, or an address."""
Uid = Annotated[str, Field(max_length=128)]
Tier = Literal["durable", "ram", "backup"]
"""The storage tier of a step: durable storage, host memory, or a copy on a second store."""
STORAGE_TIERS: tuple[Tier, ...] = ("durable", "backup")
"""The tiers that hold a step without any host."""


def join_address(host: str, port: int | None) -> str:
    """Return `host:port`, with brackets for an IPv6 address; `port` None: port 0."""
    return f"[{host}]:{port or 0}" if ":" in host else f"{host}:{port or 0}"


class BatchLayout(Strict):
    """The split of one global batch size, for a job whose batch size changes. See `Layout`."""

    global_batch_size: Count
    rows_per_shard: Count
    accumulation: Count
    microbatches: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    padding_rows: Count


class Layout(Strict):
    """The layout of the program over the devices at one number of slices. Every number is resolved: no -1.

    A global batch of G sequences is split into `accumulation` gradient-accumulation steps of `microbatches`
    microbatches. Each microbatch has `rows_per_shard` rows on each of the mesh's batch shards (the axes data, fsdp and
    expert, over ICI and DCN). The last `padding_rows` rows have weight zero. Only a pipeline has several microbatches
    per accumulation step. If the batch size changes, these numbers are those of the largest one, and `smaller_batches`
    has the others.
    """

    num_slices: Count
    hosts_per_slice: Count
    devices_per_host: Count
    ici: AxisDegrees
    dcn: AxisDegrees
    rows_per_shard: Count
    accumulation: Count
    microbatches: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    padding_rows: Count
    smaller_batches: tuple[BatchLayout, ...] = Field(
        default=(),
        max_length=MAX_BATCH_PHASES,
        exclude_if=lambda batches: not batches,  # an agent before 0.1 refuses a field it does not know
    )

    def for_batch(self, global_batch_size: int) -> "Layout":
        """Return the layout of one global batch size of the job: the largest, unless it is one of the smaller ones."""
        for batch_layout in self.smaller_batches:
            if batch_layout.global_batch_size == global_batch_size:
                numbers = {
                    name: getattr(batch_layout, name)
                    for name in BatchLayout.model_fields
                    if name in Layout.model_fields
                }
                return self.model_copy(update=numbers | {"smaller_batches": ()})
        return self

    def for_evaluation(self, max_examples: int | None, sequences_per_example: int = 1) -> "Layout":
        """Return the layout of held-out batches with at most `max_examples` on a device at once. None: as in training.

        A batch keeps its sequences and its padding: only the split into accumulation steps differs.
        """
        if max_examples is None:
            return self
        examples = self.accumulation * self.rows_per_shard // sequences_per_example
        at_once = max([number for number in range(1, min(max_examples, examples) + 1) if examples % number == 0])
        rows = at_once * sequences_per_example
        return self.model_copy(update={"rows_per_shard": rows, "accumulation": examples // at_once})

    @property
    def num_hosts(self) -> int:
        """Return the number of hosts, which is the number of JAX processes."""
        return self.num_slices * self.hosts_per_slice

    @property
    def num_devices(self) -> int:
        """Return the number of devices of the mesh."""
        return self.num_hosts * self.devices_per_host

    @property
    def batch_shards(self) -> int:
        """Return the number of batch shards of a microbatch over the mesh."""
        return math.prod([getattr(degrees, axis) for degrees in (self.ici, self.dcn) for axis in RULES["batch"]])

    @property
    def num_stages(self) -> int:
        """Return the number of pipeline stages."""
        return self.ici.stage * self.dcn.stage

    @property
    def rows_per_microbatch(self) -> int:
        """Return the rows of one microbatch over all devices, including padding."""
        return self.batch_shards * self.rows_per_shard


class JobIdentity(Strict):
    """Identity of a job. The UID separates its storage and worlds from those of another job with the same name."""

    name: str
    namespace: str
    uid: str


class RunConfig(Strict):
    """The configuration that the agents and the trainer of a job get when their pods start.

    Values in a world take precedence over it: a pod may be older than an edit of the spec.
    """

    job: JobIdentity
    spec: TrainingJobSpec
    accelerator_platform: str = Field(description="JAX platform name: `cpu`, `tpu` or `cuda`.")
    layouts: tuple[Layout, ...] = Field(description="Layout at each number of slices on which the job may train.")

    def for_world(self, world: "World") -> "RunConfig":
        """Return the configuration of the trainer in a world."""
        spec = with_live_fields(self.spec, world.live) if world.live else self.spec
        if world.remat:
            spec = spec.model_copy(update={"memory": spec.memory.model_copy(update={"remat": world.remat})})
        if world.offload is not None:
            spec = spec.model_copy(update={"memory": spec.memory.model_copy(update={"offload": world.offload or None})})
        if world.snapshots and spec.checkpoint.snapshots:
            snapshots = spec.checkpoint.snapshots.model_copy(update={"every_steps": world.snapshots})
            spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"snapshots": snapshots})})
        layouts = {layout.num_slices: layout for layout in (*self.layouts, *((world.layout,) if world.layout else ()))}
        return self.model_copy(update={"spec": spec, "layouts": tuple(layouts[size] for size in sorted(layouts))})

    def layout(self, num_slices: int) -> Layout:
        """Return the layout for a number of slices.

        Raises:
            KeyError: the plan has no valid layout for that number.
        """
        for layout in self.layouts:
            if layout.num_slices == num_slices:
                return layout
        raise KeyError(f"no layout for {num_slices} slices")


class ExpectedHardware(Open):
    """Expected capability of a device, from the hardware table and the plan. 0: unknown, not checked."""

    flops: Annotated[float, Field(ge=0)] = 0.0
    """Peak FLOP/s of bfloat16 matmuls."""
    link: Annotated[float, Field(ge=0)] = 0.0
    """Peak bytes/s that the device sends in a sum over all devices of its slice."""
    network: Annotated[float, Field(ge=0)] = 0.0
    """Peak bytes/s that its host sends to other slices."""
    memory: Annotated[int, Field(ge=0)] = 0
    """Estimated bytes that the program needs, at the number of slices where it needs most."""


class Member(Open):
    """One host of a world. `process` is its JAX process id: dense, ordered by slice and then by host."""

    process: Count
    slice: Count
    host: Count
    pod: Name
    pod_uid: Uid
    address: Name
    node: Name = ""


class Span(Open):
    """Steps that one generation trained in the job's committed history.

    `first` is the first step after the one it restored; `last` is None while a later generation has not yet restored.
    """

    generation: Count = Field(description="Generation of the world that trained these steps.")
    first: Count = Field(description="First step that it trained.")
    last: Count | None = Field(
        default=None, description="Last step of it that counts. Unset: a later generation has not restored yet."
    )
    tier: Tier = Field(
        default="durable",
        description="Storage tier of the step before `first`: `durable` storage, `ram` of hosts, or the "
        "`backup` store.",
    )


class Rollback(Open):
    """A return to an earlier step because of a bad step, and the samples to skip from then on.

    Training resumes in a new lineage, without the samples that led to the bad step. The first rollback opens lineage 1,
    with its checkpoints in `lineage-1`, and so on.
    """

    lineage: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        description="Number of the lineage that it opened: `lineage-1` holds its checkpoints."
    )
    generation: Count = Field(
        description="Generation of the world with the bad step. Of it and of earlier ones, only steps up to "
        "`parent` count."
    )
    step: Count = Field(description="The bad step from which training returned.")
    parent: Count = Field(
        description="Saved step from which training resumes; 0: from scratch. Training skips the samples of the "
        "steps after it, up to the bad one."
    )


class Replication(Open):
    """How the slices of a job train as replicas: each in a separate world, which synchronizes with the others rarely.

    A world has it, because an edit of the spec may change it while the pods of other slices keep running.
    """

    slices_max: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = Field(
        description="Number of parts of each batch, of which the replica of slice i trains part i: `slices.max`."
    )
    sync_every: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(description="Optimizer steps of a round.")
    learning_rate: Annotated[float, Field(gt=0, le=MAX_COUNT)] = Field(description="Rate of the outer optimizer.")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(description="Nesterov momentum of the outer optimizer.")
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_COUNT)] = Field(
        description="Seconds that a replica waits at the end of a round for those of other live slices."
    )


PROBATION_CHECK_SECONDS = 10.0
"""Seconds of load and repeated products on each device of a new pod on probation, except on `cpu`."""
EARLY_SAVE_SHARE = 0.25
"""Share of the usual interval after which the first save of a world with pods on probation is due."""


class World(Open):
    """The hosts that train together, their configuration, and the checkpoints that they may resume from.

    `layout`, `remat`, `offload`, `snapshots` and `live` apply to all hosts of the world, whatever configuration their
    pods started with. So all hosts run the same program, even if an operator of another version would choose other
    values. Unset: the value of the RunConfig. (A trainer without support for `rollbacks` refuses a RunConfig whose spec
    uses them.)
    """

    generation: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    job_uid: Uid
    coordinator: Annotated[str, Field(max_length=300)] = Field(
        description="`host:port` of JAX's coordination service, on process 0."
    )
    members: tuple[Member, ...] = Field(max_length=MAX_MEMBERS)
    lineage: tuple[Span, ...] = Field(
        default=(), max_length=MAX_SPANS, description="Earlier generations whose checkpoints count, oldest first."
    )
    committed: Count = Field(
        default=0,
        description="Newest step that is known to be saved. 0: none, so the world may begin at step 1.",
    )
    rollbacks: tuple[Rollback, ...] = Field(
        default=(),
        max_length=MAX_SPANS,
        description="All rollbacks before it, oldest first. The last one opened the world's lineage.",
    )
    layout: Layout | None = Field(default=None, description="Layout of its program over its devices.")
    remat: Remat | None = Field(default=None, description="Rematerialization policy of its program.")
    offload: tuple[OffloadedItem, ...] | None = Field(
        default=None, max_length=16, description="Arrays of its program in host memory. Empty: none."
    )
    snapshots: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(
        default=None, description="Steps between two snapshots of its hosts."
    )
    snapshots_may_stretch: bool = Field(
        default=False,
        description="Whether its hosts may increase the interval of snapshots that cost too much.",
    )
    live: LiveFields | None = Field(default=None, description="Live fields of the spec.")
    probation: tuple[Count, ...] = Field(
        default=(),
        max_length=MAX_MEMBERS,
        description="Processes of new pods on nodes on probation, after a fault or a repair. Their devices "
        "are checked for longer, and the first save of the world comes sooner.",
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="",
        description="Name of the hot standby world that takes over, whose processes are connected. Empty: none. "
        "In a hot standby world: its own name, beside the generation of the running world.",
    )
    replication: Replication | None = Field(
        default=None,
        description="How its only slice synchronizes with other slices. Unset: it trains all slices of the job.",
    )

    @property
    def slices(self) -> tuple[int, ...]:
        """Return the slice indices of the world, ascending: the slice map of its mesh."""
        return tuple(sorted({member.slice for member in self.members}))

    def find_member(self, pod_uid: str) -> Member | None:  # None: the pod is not in this world
        """Return the member that runs in a pod."""
        return next((member for member in self.members if member.pod_uid == pod_uid), None)
