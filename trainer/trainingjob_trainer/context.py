"""World setup: join a world and get what its steps need, without the state or anything from which it is restored."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax

from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.protocol import Phase
from trainingjob_api.world import Layout
from trainingjob_trainer.data.loader import BatchLoader, batch_shape
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.monitoring.replica_check import ReplicaCheck
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.preflight import check_world
from trainingjob_trainer.runtime.process_group import ProcessGroup, configure, connect
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import TrainStep
from trainingjob_trainer.step import StepPrograms


@dataclass(frozen=True)
class WorldContext:
    """A world that this process has joined, with the token datasets of the job."""

    layout: Layout
    peers: ProcessGroup
    programs: CompileCache
    steps: StepPrograms
    shards: Shards
    datasets: JobDatasets


class CompiledSteps(NamedTuple):
    """The compiled programs of a world."""

    train_step: TrainStep
    evaluator: Evaluator
    replicas: ReplicaCheck


def join_world(start: StartWorld, events: AgentEvents) -> WorldContext:
    """Join a world as the process that `start` names, together with all others.

    Raises:
        TrainingError: the text, the devices or the other processes cannot be used.
    """
    config = start.config
    layout, root = config.layout(len(start.world.slices)), Path(config.spec.checkpoint.uri)
    # A hot standby uses the datasets that were prepared for the world that trains.
    indexes = prepare_datasets(root, config, is_leader=start.process == 0 and not start.waits)
    events.enter_phase(Phase.CONNECTING)
    configure(config.accelerator_platform, layout, start.world, start.process)
    peers = connect(start.world, start.process, layout, config.accelerator_platform, events.report_entry)
    mesh = build_mesh(jax.devices(), layout)
    programs = CompileCache(start.compile_cache, root, config, layout, peers, start.program_secret)
    check_world(
        mesh,
        programs,
        peers,
        config.accelerator_platform,
        start.expected,
        num_slices=layout.num_slices,
        has_trained=start.proven,
    )
    steps = StepPrograms(config.spec, mesh)
    steps.begin_loading_train(programs, batch_shape(layout))  # runs while the state is restored
    return WorldContext(layout, peers, programs, steps, Shards(steps.state_shapes), indexes)


def compile_steps(start: StartWorld, context: WorldContext) -> CompiledSteps:
    """Compile or load the programs of a world, together with all its processes."""
    spec, steps, programs = start.config.spec, context.steps, context.programs
    batches = BatchLoader(context.layout, steps.batch_sharding, spec.training.global_batch_size)
    compare = spec.protection.compare_replicas
    return CompiledSteps(
        train_step=steps.compile_train(programs, batches.shape),
        evaluator=Evaluator(spec, context.datasets.evaluations, steps, programs, batches),
        replicas=ReplicaCheck(
            compare.every_steps if compare else None,
            start.world,
            context.peers,
            steps.state_shapes,
            context.shards.all,
            programs,
        ),
    )
