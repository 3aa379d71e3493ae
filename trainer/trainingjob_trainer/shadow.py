"""Hot standby: processes of the next smaller world, which wait beside those of the world that trains.

A hot standby joins its world, loads its programs and runs one step on zeros. Connections then exist, and the first real
step takes no longer than any other. The standby writes nothing. It starts once the programs of its size exist, which
are compiled ahead of time, and takes only memory that is free. The kernel kills it first if memory runs out. It keeps
the usual priority: a process that lowers its priority cannot raise it again without rights that pods do not have. It
does little work instead.
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
"""Seconds that a hot standby waits for the others, which start once their hosts have programs and memory."""
NEEDED_BYTES = RESERVED_BYTES + (256 << 20)
"""Memory that must be free when it joins: its later use with a small model, plus the memory reserved for others."""
STATES = 3
"""Memory of a step in multiples of the state: the state, its gradients, and intermediates. That much must be free."""
OWN_SCORE = Path("/proc/self/oom_score_adj")


def wait(start: Start, events: Events, hear_world: Callable[[], Start]) -> tuple[Party, Tools, Start]:
    """Join a hot standby world, prepare to train, and return when it takes over, with the world to train in."""
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
    # The flags that it sets are part of the compile-cache key.
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
    """Run one step on a state of zeros, if all hosts have memory for it."""
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
        assert leaf.sharding is not None  # noqa: S101  # described states have shardings
        zeros = np.zeros(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda _: zeros)

    zeros: State = jax.tree.map(make, described)
    return zeros


@contextmanager
def _first_to_die() -> Iterator[None]:
    """Make this process the first that the kernel kills for memory while the context lasts."""
    before = ""
    with suppress(OSError):
        before = OWN_SCORE.read_text()
        OWN_SCORE.write_text(FIRST_TO_DIE)
    yield
    with suppress(OSError):
        OWN_SCORE.write_text(before)
