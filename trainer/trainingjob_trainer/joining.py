"""World setup: join a world and get what its steps need, without the state or anything from which it is restored."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax

from trainingjob_api.protocol import Phase
from trainingjob_api.world import Layout
from trainingjob_trainer.evaluate import Evaluator
from trainingjob_trainer.events import Events
from trainingjob_trainer.feeding.batches import Batches, shape_of
from trainingjob_trainer.feeding.index import Indexes, prepare
from trainingjob_trainer.modelling.mesh import build_mesh
from trainingjob_trainer.modelling.signature import TrainStep
from trainingjob_trainer.modelling.step import Steps
from trainingjob_trainer.preflight import check_world
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.replicas import Replicas
from trainingjob_trainer.shards import Shards
from trainingjob_trainer.wire import Start
from trainingjob_trainer.world import Peers, configure, connect


@dataclass(frozen=True)
class Party:
    """A world that this process has joined, with the token datasets of the job."""

    layout: Layout
    peers: Peers
    programs: Programs
    steps: Steps
    shards: Shards
    indexes: Indexes


class Tools(NamedTuple):
    """The compiled programs of a world."""

    train_step: TrainStep
    evaluator: Evaluator
    replicas: Replicas


def join(start: Start, events: Events) -> Party:
    """Join a world as the process that `start` names, together with all others.

    Raises:
        TrainingError: the text, the devices or the other processes cannot be used.
    """
    config = start.config
    layout, root = config.layout(len(start.world.slices)), Path(config.spec.checkpoint.uri)
    # A hot standby uses the datasets that were prepared for the world that trains.
    indexes = prepare(root, config, leads=start.process == 0 and not start.waits)
    events.enter(Phase.CONNECTING)
    configure(config.accelerator_platform, layout, start.world, start.process)
    peers = connect(start.world, start.process, layout, config.accelerator_platform, events.join)
    mesh = build_mesh(jax.devices(), layout)
    programs = Programs(start.compile_cache, root, config, layout, peers, start.program_secret)
    check_world(
        mesh,
        programs,
        peers,
        config.accelerator_platform,
        start.expected,
        num_slices=layout.num_slices,
        is_proven=start.proven,
    )
    steps = Steps(config.spec, mesh)
    steps.begin_loading_train(programs, shape_of(layout))  # runs while the state is restored
    return Party(layout, peers, programs, steps, Shards(steps.state), indexes)


def equip(start: Start, party: Party) -> Tools:
    """Compile or load the programs of a world, together with all its processes."""
    spec, steps, programs = start.config.spec, party.steps, party.programs
    batches = Batches(party.layout, steps.rows, spec.training.global_batch_size)
    compare = spec.protection.compare_replicas
    return Tools(
        train_step=steps.compile_train(programs, batches.shape),
        evaluator=Evaluator(spec, party.indexes.evaluations, steps, programs, batches),
        replicas=Replicas(
            compare.every_steps if compare else None,
            start.world,
            party.peers,
            steps.state,
            party.shards.all,
            programs,
        ),
    )
