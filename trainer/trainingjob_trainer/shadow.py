"""Waiting in a shadow world: the next smaller one, whose processes live beside those of the world that trains.

A shadow joins, loads its programs and makes one step of nothing, so that connections are there and the first step of
use takes no longer than any other. It writes nothing. It begins once the programs of its size lie there, which are
compiled ahead, and takes no memory that is not free; it is the first that the kernel ends where memory runs out. Its
priority is that of any process: one that has given it up cannot have it back without rights that pods do not have. So
it is short of work instead.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
import numpy as np

from trainingjob_trainer.ahead.memory import free_memory
from trainingjob_trainer.ahead.neighbours import FIRST_TO_DIE, RESERVED_BYTES
from trainingjob_trainer.ahead.request import list_programs
from trainingjob_trainer.events import Events
from trainingjob_trainer.feeding.batches import Batches
from trainingjob_trainer.joining import Party, Tools, equip, join
from trainingjob_trainer.modelling.signature import Asked, State
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.wire import Event, Start
from trainingjob_trainer.world import Peers, configure

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1800
"""How long a shadow waits for the others, which begin when their hosts have the means."""
NEEDED_BYTES = RESERVED_BYTES + (256 << 20)
"""Memory that must be free when it joins: what it takes from then on with a small model, and what is left to others."""
STATES = 3
"""How much memory a step takes, in states: the state, its gradients, and what lies between. As much must be free."""
OWN_SCORE = Path("/proc/self/oom_score_adj")


def wait(start: Start, events: Events, hear_world: Callable[[], Start]) -> tuple[Party, Tools, Start]:
    """Join a shadow world, be ready to train, and return when it takes over: with the world to train in."""
    with _first_to_die():
        _await_means(start)
        party = join(start, events)
        tools = equip(start, party)
        _rehearse(start, party, tools)
        LOG.info("waiting in a shadow world process=%d of=%d", start.process, len(start.world.members))
        events.send(Event(waiting=True))
        return party, tools, hear_world()


def _await_means(start: Start) -> None:
    """Wait for the programs of this size, and for memory."""
    config = start.config
    layout = config.layout(len(start.world.slices))
    # Its flags are part of a program's name.
    configure(config.accelerator_platform, layout, start.world, start.process)
    root = Path(config.spec.checkpoint.uri)
    programs = Programs(start.compile_cache, root, config, layout, Peers(0, 1), start.program_secret)
    while not all(map(programs.is_there, list_programs(config.spec, layout))):
        time.sleep(POLL_SECONDS)
    is_told = False
    while (free := free_memory()) < NEEDED_BYTES:
        if not is_told:
            words = "no memory for a shadow world free=%d needed=%d; spec.runtime.resources.memory bounds it"
            LOG.warning(words, free, NEEDED_BYTES)
        is_told = True
        time.sleep(POLL_SECONDS)


def _rehearse(start: Start, party: Party, tools: Tools) -> None:
    """Make one step with a state of zeros, where all hosts have memory for that."""
    steps, size = party.steps, start.config.spec.training.global_batch_size
    needed = RESERVED_BYTES + STATES * sum(shard.num_bytes for shard in party.shards.mine.values())
    is_free = free_memory() >= needed
    if not all(party.peers.exchange("rehearsal", "yes" if is_free else "", PATIENCE_SECONDS)):
        return
    batch = Batches(party.layout, steps.rows, size).train(party.indexes.train, 1, steps.seed)
    _, measures = tools.train_step(_make_zeros(steps.state), batch, steps.controls(Asked.NOTHING))
    jax.block_until_ready(measures)


def _make_zeros(described: State) -> State:
    def make(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        assert leaf.sharding is not None  # noqa: S101  # as all states are described
        zeros = np.zeros(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda _: zeros)

    zeros: State = jax.tree.map(make, described)
    return zeros


@contextmanager
def _first_to_die() -> Iterator[None]:
    """Be the first that the kernel ends for memory while the context lasts."""
    before = ""
    with suppress(OSError):
        before = OWN_SCORE.read_text()
        OWN_SCORE.write_text(FIRST_TO_DIE)
    yield
    with suppress(OSError):
        OWN_SCORE.write_text(before)
