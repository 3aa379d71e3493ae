"""Detection of silent corruption: a device whose bits of the state differ from those of the shard's other replicas.

Each device hashes the bits of each element of its shards and sums the hashes as integers that wrap. A changed element
always has another hash, so that one changed element always changes the sum. Changes of several elements cancel with a
chance of about 1 in 4 billion, unless elements exchange their values. A sum of the bits themselves would be weaker: two
flips of the same bit often cancel there, and two flipped signs always do.

The order of the additions never changes the sum, and replicas compute the same numbers from the same bits. A sum that
differs from those of most replicas therefore identifies a device whose memory or arithmetic is broken. With two
replicas there is no majority.

The sums are also compared before a step is saved or kept in memory, so that all replicas agree on every kept step.
After a difference, the world resumes from a step that was kept before it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import World
from trainingjob_trainer.monitoring.bad_steps import BadStepError
from trainingjob_trainer.parallel.bit_sums import sum_bits
from trainingjob_trainer.parallel.host_memory import map_in_turn
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import Shard
from trainingjob_trainer.state import State

type DeviceOwner = tuple[int, int]
"""The process of the world that a device belongs to, and the device's number in that process."""


@dataclass(frozen=True)
class Mismatch:
    """Devices that differ, as positions in the mesh. `certain`: they differ from a majority."""

    positions: frozenset[int]
    has_majority: bool
    shard_name: str
    """The first shard of which they hold other bits."""


class ReplicaCheck:
    """The comparison of a world's replicas. `every` is None if the spec configures none.

    `state` holds the state's shapes and shardings, and `shards` are all its shards.
    """

    def __init__(
        self,
        every: int | None,
        world: World,
        peers: ProcessGroup,
        state: State,
        shards: Sequence[Shard],
        programs: CompileCache,
    ) -> None:
        self._every = every or 0
        self._world = world
        self._process = peers.process
        devices = list(jax.tree.leaves(state)[0].sharding.mesh.devices.flat)
        self._owners = [(peers.process_of(device), device.local_hardware_id or 0) for device in devices]
        places = {device: place for place, device in enumerate(devices)}
        self._groups = [
            (shard.leaf, shard.name, tuple(places[device] for device in shard.devices))
            for shard in shards
            if len(shard.devices) > 1
        ]
        self._bit_sums = compile_bit_sums(programs, state) if every else None

    def is_due(self, step: int) -> bool:
        """Return whether the spec requires a comparison after a step."""
        return self._every > 0 and step % self._every == 0

    def check(self, step: int, state: State) -> None:
        """Compare the replicas of the state after a step, if the spec configures comparisons.

        All processes call it together: when a comparison is due, and before a state is saved or kept in memory.

        Raises:
            BadStepError: replicas differ. A process with such a device reports that; all others report a lost peer.
        """
        if self._bit_sums is None:
            return
        mismatch = find_mismatch(np.asarray(self._bit_sums(state)), self._groups)
        if mismatch:
            raise mismatch_error(step, mismatch, self._owners, self._world, self._process)


def mismatch_error(
    step: int, mismatch: Mismatch, owners: Sequence[DeviceOwner], world: World, process: int
) -> BadStepError:
    """Return this process's error for devices that differ; `owners` are the processes of all devices of the mesh."""
    by_process: dict[int, list[int]] = defaultdict(list)
    for place in sorted(mismatch.positions):
        owner, number = owners[place]
        by_process[owner].append(number)
    hosts = {member.process: f"host {member.host} of slice {member.slice}" for member in world.members}
    named = ", ".join(
        f"{hosts[owner]} (device {' and '.join(map(str, numbers))})" for owner, numbers in by_process.items()
    )
    if process not in by_process:
        return BadStepError(FailureReason.PEER, f"at step {step} {named} held different bits of the state", fatal=False)
    if mismatch.has_majority:
        description = f"at step {step} {named} held different bits of {mismatch.shard_name} than the majority"
    else:
        description = (
            f"at step {step} these held different bits of {mismatch.shard_name}, "
            f"without a majority that is right: {named}"
        )
    return BadStepError(
        FailureReason.CORRUPTION,
        f"{description}. The memory or the arithmetic of such a device is broken, without any other symptom. "
        "Saved steps were compared before the save, and are intact.",
        fatal=False,
        is_host_known=mismatch.has_majority or len(by_process) == 1,
    )


def compile_bit_sums(programs: CompileCache, state: State) -> Any:
    """Return the program that sums bits: from a state to uint32 [devices, leaves], on all processes."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
    mesh = jax.tree.leaves(shardings)[0].mesh

    def add_up(arrays: State) -> jax.Array:
        return jnp.stack(map_in_turn(sum_bits, state, arrays))[None, :]

    function = jax.shard_map(add_up, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(AXES), check_vma=False)
    return programs.compile_or_load(
        "replicas", function, (state,), 0, out_shardings=NamedSharding(mesh, PartitionSpec())
    )


def find_mismatch(
    sums: np.ndarray, groups: Iterable[tuple[int, str, tuple[int, ...]]]
) -> Mismatch | None:  # None: all replicas agree
    """Return the devices that differ from their peers. Groups are (leaf, name, mesh positions of the replicas)."""
    with_majority: dict[int, str] = {}
    without_majority: dict[int, str] = {}
    for leaf, name, places in groups:
        sums_of_replicas = {place: int(sums[place, leaf]) for place in places}
        (most, count), *others = Counter(sums_of_replicas.values()).most_common()
        if not others:
            continue
        if 2 * count > len(places):
            with_majority |= {
                place: name for place in places if sums_of_replicas[place] != most and place not in with_majority
            }
        else:
            without_majority |= {place: name for place in places if place not in without_majority}
    return _mismatch(with_majority, certain=True) or _mismatch(without_majority, certain=False)


def _mismatch(places: Mapping[int, str], *, certain: bool) -> Mismatch | None:  # None: `places` is empty
    return Mismatch(frozenset(places), certain, next(iter(places.values()))) if places else None
