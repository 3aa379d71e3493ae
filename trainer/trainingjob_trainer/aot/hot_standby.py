"""Hot standby: processes of the next smaller world, which wait beside those of the world that trains.

A hot standby joins its world, loads its programs and runs one step on zeros. Connections then exist, and the first real
step takes no longer than any other. The standby writes nothing. It starts once the programs of its size exist, which
are compiled ahead of time, and takes only memory that is free. The kernel kills it first if memory runs out. It keeps
the usual priority: a process that lowers its priority cannot raise it again without rights that pods do not have. It
does little work instead.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
import numpy as np

from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_trainer.aot.compile_request import program_names
from trainingjob_trainer.aot.neighbor_compiler import MAX_OOM_SCORE, RESERVED_BYTES
from trainingjob_trainer.context import CompiledSteps, JoinedWorld, compile_steps, join_world
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.available_memory import available_memory
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup, configure
from trainingjob_trainer.state import Signal

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5
EXCHANGE_SECONDS = 1800
"""Seconds that a hot standby waits for the others, which start once their hosts have programs and memory."""
MIN_FREE_BYTES = RESERVED_BYTES + (256 << 20)
"""Memory that must be free when it joins: its later use with a small model, plus the memory reserved for others."""
STATES_PER_STEP = 3
"""Memory of a step in multiples of the state: the state, its gradients, and intermediates. That much must be free."""
OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")


def wait_in_hot_standby(
    start: StartWorld, events: AgentEvents, receive_start: Callable[[], StartWorld]
) -> tuple[JoinedWorld, CompiledSteps, StartWorld]:
    """Join a hot standby world, prepare to train, and return when it takes over, with the world to train in."""
    with _first_oom_victim():
        _wait_for_programs_and_memory(start)
        joined = join_world(start, events)
        compiled = compile_steps(start, joined)
        _run_dry_step(start, joined)
        LOG.info("waiting in a hot standby world process=%d of=%d", start.process, len(start.world.members))
        events.send(AgentEvent(waiting=True))
        return joined, compiled, receive_start()


def _wait_for_programs_and_memory(start: StartWorld) -> None:
    """Wait for the programs of this size, and for memory."""
    config = start.config
    layout = config.layout(len(start.world.slices))
    # The flags that it sets are part of the compile-cache key.
    configure(config.accelerator_platform, layout, start.world, start.process)
    root = config.spec.checkpoint.uri
    programs = CompileCache(start.compile_cache, root, config, layout, ProcessGroup(0, 1), start.program_secret)
    while not all(map(programs.is_cached, program_names(config.spec, layout))):
        time.sleep(POLL_SECONDS)
    is_logged = False
    while (free := available_memory()) < MIN_FREE_BYTES:
        if not is_logged:
            message = "no memory for a hot standby world free=%d needed=%d; raise spec.runtime.resources.memory"
            LOG.warning(message, free, MIN_FREE_BYTES)
        is_logged = True
        time.sleep(POLL_SECONDS)


def _run_dry_step(start: StartWorld, joined: JoinedWorld) -> None:
    """Run one step on a state of zeros, if all hosts have memory for it."""
    steps, training = joined.steps, start.config.spec.training
    needed = RESERVED_BYTES + STATES_PER_STEP * sum(shard.num_bytes for shard in joined.shards.local_shards.values())
    needed += _count_local_bytes(steps.teacher_shapes)
    is_free = available_memory() >= needed
    if not all(joined.peers.exchange("rehearsal", "yes" if is_free else "", EXCHANGE_SECONDS)):
        return
    history = SampleHistory(training.batch_sizes)
    loader = BatchLoader(joined.layout, steps.batch_sharding, training.largest_batch, history)
    step = start.world.committed + 1
    batch = loader.train_batch(joined.datasets.train, step, training.seed)
    controls = steps.controls(Signal.NONE, training.step_limit, _make_zeros(steps.teacher_shapes))
    train_step = joined.train.choose(step, loader.size_of_step(step))  # `compile_steps` has loaded it
    _, measures = train_step(_make_zeros(steps.state_shapes), batch, controls)
    jax.block_until_ready(measures)


def _count_local_bytes(abstract_params: Params | None) -> int:
    """Return the bytes of the shards of this process."""

    def count(leaf: jax.ShapeDtypeStruct) -> int:
        assert leaf.sharding is not None  # noqa: S101  # described parameters have shardings
        num_bytes: int = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        return num_bytes * len(leaf.sharding.addressable_devices)

    return sum(map(count, jax.tree.leaves(abstract_params)))


def _make_zeros[T](abstract_tree: T) -> T:
    def make(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        assert leaf.sharding is not None  # noqa: S101  # described states have shardings
        zeros = np.zeros(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda _: zeros)

    zeros: T = jax.tree.map(make, abstract_tree)
    return zeros


@contextmanager
def _first_oom_victim() -> Iterator[None]:
    """Make this process the first that the kernel kills for memory while the context lasts."""
    before = ""
    with suppress(OSError):
        before = OOM_SCORE_FILE.read_text()
        OOM_SCORE_FILE.write_text(MAX_OOM_SCORE)
    yield
    with suppress(OSError):
        OOM_SCORE_FILE.write_text(before)
