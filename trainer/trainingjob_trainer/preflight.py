"""Before a host of a new pod trains: whether its devices compute right, add up right, and keep up with the others.

A device that computes wrongly spoils a model without a word, and a slow one keeps all others back. Both are found in a
moment by numbers that are known beforehand: products of small integers, which every floating-point format holds
exactly, and their sum over all devices of the world. DLRover checks its nodes likewise before they may train.

Rates and free memory are held against those of the other devices, which are of the same kind. On `cpu` they are not:
hosts share processors there, so that one is slow for a moment says nothing.
"""

import json
import statistics
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.world import Peers

SECONDS = 300.0
"""How long a host waits for the others' figures: a device is slow to start for the first time."""
SIZE = 256
PATTERNS = 5
"""Matrices that differ: neighbouring devices have other ones."""
RATE_SIZE, ROUNDS = 2048, 32
SLOW = 0.25
"""Share of the median rate below which a device is broken, not only busy."""
FULL = 0.8
"""Share of the median free memory below which somebody else holds a part of a device's memory."""


class Vitals(NamedTuple):
    """What one device can do. 0: unknown, never judged."""

    rate: float
    """FLOP/s of a matrix product."""
    free: float
    """Bytes of its memory that nobody holds."""


def check_world(mesh: Mesh, programs: Programs, peers: Peers, platform: str, *, is_proven: bool) -> None:
    """Check the devices of a world unless all its hosts are proven: their pods have trained before.

    Raises:
        TrainingError: a device of this host is not fit, or the sum over all devices is wrong.
    """
    told = peers.exchange("proven", json.dumps(is_proven), SECONDS)
    if all(json.loads(text) for text in told):
        return
    check_arithmetic(mesh, programs, peers)
    if platform != "cpu":
        own = [_measure(device) for device in jax.local_devices()]
        everyone = [
            Vitals(*one) for text in peers.exchange("vitals", json.dumps(own), SECONDS) for one in json.loads(text)
        ]
        if problem := find_unfit(own, everyone):
            raise TrainingError(FailureReason.ACCELERATOR, problem, fatal=False)


def check_arithmetic(mesh: Mesh, programs: Programs, peers: Peers) -> None:
    """Let every device of a mesh multiply numbers and all add up the results, and compare both with the known ones.

    Raises:
        TrainingError: a device is wrong, or the sum is.
    """
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXES))
    seeds = np.arange(mesh.size, dtype=np.uint32)

    def compute(seeds: jax.Array) -> Any:
        found = digest(seeds[0], jnp)[None]
        return found, jax.lax.psum(found[0], AXES)

    program = programs.build(
        "preflight",
        jax.shard_map(
            compute, mesh=mesh, in_specs=PartitionSpec(AXES), out_specs=(PartitionSpec(AXES), PartitionSpec())
        ),
        (jax.ShapeDtypeStruct(seeds.shape, seeds.dtype, sharding=split),),
        (0, 0),
        once=True,
        out_shardings=(split, everywhere),
    )
    found, total = program(jax.make_array_from_callback(seeds.shape, split, lambda place: seeds[place]))
    expected = expect_digests()[seeds % PATTERNS]
    wrong = [shard.device for shard in found.addressable_shards if np.asarray(shard.data) != expected[shard.index]]
    told = peers.exchange("preflight", str(len(wrong)), SECONDS)
    if wrong:
        message = (
            f"device {wrong[0].id} of this host ({wrong[0].device_kind}) multiplies wrongly: small whole numbers do "
            "not give the product that is known beforehand. Take the node out of service."
        )
        raise TrainingError(FailureReason.ACCELERATOR, message, fatal=False)
    if any(text != "0" for text in told):
        raise TrainingError(FailureReason.PEER, "a device of another host multiplies wrongly.", fatal=False)
    if np.asarray(total) != np.add.reduce(expected, dtype=np.uint32):
        message = (
            "the sum over all devices is not the one that is known beforehand, though each device computes right: "
            "numbers change on the network between the hosts."
        )
        raise TrainingError(FailureReason.NETWORK, message, fatal=False)


@cache
def expect_digests() -> np.ndarray:
    """Return the digests, uint32 [PATTERNS], that every device must come to; a standby computes them in advance."""
    return np.array([digest(pattern, np) for pattern in range(PATTERNS)], np.uint32)


def digest(seed: Any, xp: Any) -> Any:
    """Return a digest, uint32, of a product of matrices made from a seed; `xp` is NumPy, or JAX's on a device.

    Elements are whole numbers from -2 to 2, so that the sums of `SIZE` products are exact in float32.
    """
    row, column = xp.arange(SIZE, dtype=xp.uint32)[:, None], xp.arange(SIZE, dtype=xp.uint32)[None, :]
    mixed = row * row + 31 * column + row * column + 67 * (seed % PATTERNS)
    left, right = (((mixed + turn) % 251 % 5).astype(xp.float32) - 2 for turn in (0, 113))
    product = (left @ right).astype(xp.int32).astype(xp.uint32)
    weights = row * xp.uint32(2654435761) + column * xp.uint32(40503) + xp.uint32(1)
    return xp.sum(product * weights, dtype=xp.uint32)


def find_unfit(own: Sequence[Vitals], everyone: Sequence[Vitals]) -> str:
    """Return which of a host's own devices falls behind those of the whole world, in words; empty: none."""
    for number, one in enumerate(own):
        for what, unit, value, share, others in (
            ("multiplies matrices at", "TFLOP/s", one.rate, SLOW, [other.rate for other in everyone]),
            ("has free memory of", "TB", one.free, FULL, [other.free for other in everyone]),
        ):
            usual = statistics.median(others)
            if value and value < share * usual:
                return (
                    f"device {number} of this host {what} {value / 1e12:.3g} {unit}, while half of the world's devices "
                    f"have {usual / 1e12:.3g} or more: it is broken, throttled, or somebody else uses it."
                )
    return ""


def _measure(device: jax.Device) -> Vitals:
    """Return the rate of a matrix product on a device, from its second run on, and its free memory."""
    ones = jax.device_put(jnp.ones((RATE_SIZE, RATE_SIZE), jnp.bfloat16), device)
    multiply = jax.jit(lambda x: jax.lax.fori_loop(0, ROUNDS, lambda _, y: (x @ y) / RATE_SIZE, x))
    multiply(ones).block_until_ready()
    begun = time.perf_counter()
    multiply(ones).block_until_ready()
    seconds = time.perf_counter() - begun
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    return Vitals(2.0 * RATE_SIZE**3 * ROUNDS / seconds, float(free))
