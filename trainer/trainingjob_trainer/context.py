"""What a training program receives, in the order in which it comes to be: join a world, restore, compile, context."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import Phase
from trainingjob_api.spec.checkpoint import MEMORY
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout, RunConfig, World
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.loader import BatchLoader, batch_shape
from trainingjob_trainer.data.sampler import WHOLE_BATCH, SampleShare, size_of_step
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets
from trainingjob_trainer.models.decoder import Params, split_model_of
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.monitoring.evaluate_programs import EvaluateProgram, compile_evaluations
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.monitoring.replica_check import ReplicaCheck
from trainingjob_trainer.monitoring.step_profiler import StepProfiler
from trainingjob_trainer.monitoring.step_reporter import StepReporter
from trainingjob_trainer.monitoring.text_samples import TextSampler
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.replicas.outer_update import OuterRates
from trainingjob_trainer.replicas.replica_training import ReplicaTraining, RoundSchedule, describe_saved, open_replica
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_files import Replica, RoundFiles
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.entrypoint_module import compare_sources, load_entrypoint
from trainingjob_trainer.runtime.hlo_dump import open_hlo_dump
from trainingjob_trainer.runtime.image_check import check_image
from trainingjob_trainer.runtime.preflight import check_world
from trainingjob_trainer.runtime.process_group import ProcessGroup, configure, connect
from trainingjob_trainer.sampling.token_programs import TokenPrograms, make_generator
from trainingjob_trainer.snapshots.snapshot_restore import SnapshotRestore
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.snapshots.state_shards import Shards, find_constant_leaves
from trainingjob_trainer.state import Batch, BatchShape, Controls, Signal, State, TrainStep
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.trackers.metrics_file import Line


def train_program_names(spec: TrainingJobSpec) -> dict[tuple[int, bool], str]:
    """Return the names of the programs of the training step, by batch size and whether they measure norms.

    They are in the order in which a run needs them.
    """
    kinds = {"train": False} | ({"statistics": True} if spec.metrics.statistics else {})
    return {
        (size, measures_norms): kind if size == spec.training.largest_batch else f"{kind}-{size}"
        for _, size in spec.training.batch_sizes
        for kind, measures_norms in kinds.items()
    }


class TrainPrograms:
    """The programs of the training step by batch size. All processes compile or load them together when needed."""

    def __init__(self, steps: StepPrograms, programs: CompileCache, spec: TrainingJobSpec, layout: Layout) -> None:
        self._steps = steps
        self._programs = programs
        self._names = train_program_names(spec)
        self._statistics = spec.metrics.statistics
        self._layout = layout
        self._loaded: dict[tuple[int, bool], TrainStep] = {}

    def begin_loading(self, global_batch_size: int) -> None:
        """Start to load the program of a batch size in the background."""
        name = self._names[global_batch_size, False]
        self._steps.begin_loading_train(self._programs, self._shape(global_batch_size), name)

    def is_loaded(self, global_batch_size: int) -> bool:
        """Return whether the programs of a batch size are ready."""
        return (global_batch_size, False) in self._loaded

    def load(self, global_batch_size: int) -> None:
        """Compile or load the programs of a batch size, unless they are ready."""
        for size, measures_norms in self._names:
            if size == global_batch_size and (size, measures_norms) not in self._loaded:
                self._loaded[size, measures_norms] = self.compile(size, measures_norms)

    def compile(self, global_batch_size: int, measures_norms: bool) -> TrainStep:  # noqa: FBT001  # the key of a name
        """Return the program of a batch size, compiled or loaded."""
        name, shape = self._names[global_batch_size, measures_norms], self._shape(global_batch_size)
        return self._steps.compile_train(self._programs, shape, name, measures_norms=measures_norms)

    def choose(self, step: int, global_batch_size: int) -> TrainStep:
        """Return the loaded program of a step: the one that measures norms, if statistics are due."""
        is_due = self._statistics is not None and step % self._statistics.every_steps == 0
        return self._loaded[global_batch_size, is_due]

    def _shape(self, global_batch_size: int) -> BatchShape:
        return batch_shape(self._layout.for_batch(global_batch_size))


@dataclass(frozen=True)
class JoinedWorld:
    """A world that this process has joined, with the token datasets of the job."""

    layout: Layout
    mesh: Mesh
    peers: ProcessGroup
    programs: CompileCache
    steps: StepPrograms
    train: TrainPrograms
    shards: Shards
    datasets: JobDatasets


class Restored(NamedTuple):
    """The newest state of the job's history, and where this world keeps its own."""

    state: State | None  # None: start from scratch
    checkpoints: Checkpoints
    snapshots: Snapshots
    recent_metrics: tuple[Line, ...]
    """The newest metrics lines before the restored snapshot."""


class CompiledSteps(NamedTuple):
    """The compiled programs of a world, except those of the training step.

    No value that an edit of the spec may change is part of them.
    """

    evaluations: Mapping[str, EvaluateProgram]
    """The programs of the evaluations, by the name of the evaluation."""
    replicas: ReplicaCheck
    token_programs: TokenPrograms | None = None  # None: the spec has no samples
    read_params: Callable[[State], Params] = lambda state: state.params
    """Returns the parameters that evaluations, samples and exports use: averaged, if the spec has an average."""


@dataclass(frozen=True)
class Context:
    """What a training program receives: its configuration, world and data, and how to report, save and leave.

    `config` is that of the world in which it trains, also if a hot standby joined that world with an older one. The
    data position is the newest step of `checkpoints`, with the excluded samples and batch sizes of `batches`.
    """

    config: RunConfig
    world: JoinedWorld
    batches: BatchLoader
    evaluator: Evaluator
    sampler: TextSampler
    checkpoints: Checkpoints
    snapshots: Snapshots
    reporter: StepReporter
    profiler: StepProfiler
    signals: ControlSignals
    teacher: Params | None = None
    """The parameters of the teacher. None: the objective has no teacher."""
    rounds: ReplicaTraining | None = None
    """The rounds of the job's replicas. None: one world trains the job."""

    @property
    def last_step(self) -> int:
        """Return the step after which training is done."""
        return self.config.spec.training.step_limit

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of the world's devices: all processes compute on it together."""
        return self.world.mesh

    def train_batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 1."""
        with self.reporter.loading_batch():
            return self.batches.train_batch(self.world.datasets.train, step, self.config.spec.training.seed)

    def controls(self) -> Controls:
        """Return the controls of the next step, with the signals that this process sends."""
        return self.world.steps.controls(self.take_signals(), self.last_step, self.teacher)

    def take_signals(self) -> Signal:
        """Return the signals that this process sends with the next step: from its agent, and from its measurements."""
        return self.signals.take_signals() | self.checkpoints.save_signal() | self.snapshots.stretch_signal()


def join_world(start: StartWorld, events: AgentEvents) -> JoinedWorld:
    """Join a world as the process that `start` names, together with all others.

    Raises:
        TrainingError: the image, the entrypoint, the text, the devices or the other processes cannot be used.
    """
    config = start.config
    check_image(config.accelerator_platform, has_trained=bool(start.world.lineage))
    layout, root = config.layout(len(start.world.slices)), config.spec.checkpoint.uri
    program = config.spec.program
    if program:
        load_entrypoint(program)  # an error comes before any other process is waited for
    # A hot standby uses the datasets that were prepared for the world that trains.
    share = None if start.waits else _find_host_share(start, layout)
    indexes = prepare_datasets(
        open_store(root), config, share, lambda progress: events.send(AgentEvent(preparation=progress))
    )
    events.enter_phase(Phase.CONNECTING)
    configure(config.accelerator_platform, layout, start.world, start.process)
    peers = connect(start.world, start.process, layout, config.accelerator_platform, events.report_entry)
    if program:
        compare_sources(program, peers)
    mesh = build_mesh(jax.devices(), layout)
    secret, dump = start.program_secret, open_hlo_dump(start)
    programs = CompileCache(start.compile_cache, root, config, layout, peers, secret, dump)
    check_world(
        mesh,
        programs,
        peers,
        config.accelerator_platform,
        start.expected,
        num_slices=layout.num_slices,
        has_trained=start.proven,
        on_probation=start.process in start.world.probation,
    )
    steps = StepPrograms(config.spec, mesh)
    steps.log_kernels()
    train = TrainPrograms(steps, programs, config.spec, layout)
    train.begin_loading(_next_batch_size(start))  # runs while the state is restored
    return JoinedWorld(layout, mesh, peers, programs, steps, train, Shards(steps.state_shapes), indexes)


def _find_host_share(start: StartWorld, layout: Layout) -> HostShare:
    hosts, slices = layout.num_hosts, find_share(start.world)
    replica_hosts = hosts if start.world.replication else None
    return HostShare(slices.part * hosts + start.process, slices.parts * hosts, replica_hosts)


def restore_state(start: StartWorld, joined: JoinedWorld, events: AgentEvents) -> Restored:
    """Restore the newest state of the job's history, from host memory or storage, together with all processes.

    Raises:
        TrainingError: checkpoints exist, and none can be used.
    """
    checkpoint, world, shapes = start.config.spec.checkpoint, start.world, joined.steps.state_shapes
    peers, programs, dataset_hash = joined.peers, joined.programs, joined.datasets.train.dataset_hash
    slice_number = world.slices[0] if world.replication else None
    checkpoints = Checkpoints(checkpoint.uri, start.config, world, peers, dataset_hash, events, slice_number)
    every = (checkpoint.snapshots.every_steps if checkpoint.snapshots else None) or 0
    max_every = checkpoint.save.every_steps // 2 if world.snapshots_may_stretch else 0
    snapshots = Snapshots(
        start.snapshots,
        every,
        world,
        dataset_hash,
        shapes,
        joined.shards,
        constant=find_constant_leaves(shapes, resolve_network(start.config.spec).frozen_names),
        max_every=max_every,
        in_memory=checkpoint.snapshots is None or checkpoint.snapshots.medium == MEMORY,
    )
    memory = SnapshotRestore(snapshots, shapes, programs, peers) if every else None
    replica = SingleReplicaRestore(shapes, joined.shards, programs, peers) if checkpoint.restore else None
    saved = describe_saved(shapes, split_model_of(start.config.spec).param_split) if world.replication else shapes
    state = checkpoints.restore(saved, memory, replica)
    key = checkpoints.restored_snapshot
    return Restored(state, checkpoints, snapshots, memory.metrics(key) if memory and key else ())


def find_share(world: World) -> SampleShare:
    """Return the share of each batch that a world trains: a part if its slice is a replica."""
    return SampleShare(world.slices[0], world.replication.slices_max) if world.replication else WHOLE_BATCH


def open_rounds(
    start: StartWorld, joined: JoinedWorld, state: State, checkpoints: Checkpoints, signals: ControlSignals
) -> tuple[State, ReplicaTraining | None]:  # None: the world trains the whole job
    """Return the state on the devices, and the rounds of the replica that a world trains, before it joins them.

    From then on, `checkpoints` saves the outer optimizer with the state.
    """
    world, replication = start.world, start.world.replication
    if replication is None:
        return state, None
    spec = start.config.spec
    files = RoundFiles(open_store(spec.checkpoint.uri), world.job_uid, len(world.rollbacks))
    agreement = RoundAgreement(files, world.job_uid, signals.wait_for_live_slices, replication.wait_seconds)
    rates = OuterRates(replication.learning_rate, replication.momentum)
    state, rounds = open_replica(
        agreement,
        Replica(world.slices[0], world.generation),
        joined.peers,
        RoundSchedule(replication.sync_every, spec.training.step_limit, rates),
        split_model_of(spec).param_split,
        joined.steps.state_shapes,
        state,
    )
    checkpoints.replica = rounds
    return state, rounds


def _next_batch_size(start: StartWorld) -> int:
    """Return the batch size after the newest step that is known to be saved."""
    return size_of_step(start.world.committed + 1, start.config.spec.training.batch_sizes)


def compile_steps(start: StartWorld, joined: JoinedWorld) -> CompiledSteps:
    """Compile or load the programs of a world, together with all its processes."""
    spec, steps, programs = start.config.spec, joined.steps, joined.programs
    joined.train.load(_next_batch_size(start))
    compare = spec.protection.compare_replicas
    generator = make_generator(spec, steps.state_shapes.params, joined.mesh)
    return CompiledSteps(
        evaluations=compile_evaluations(steps, programs, spec, joined.layout),
        replicas=ReplicaCheck(
            compare.every_steps if compare else None,
            start.world,
            joined.peers,
            steps.state_shapes,
            joined.shards.all,
            programs,
        ),
        token_programs=generator.compile(programs) if generator else None,
        read_params=steps.compile_average(programs),
    )
