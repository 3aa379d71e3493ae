"""Preflight checks of a new pod's devices: correct products, correct sums over the network, and normal speed.

A device that computes wrongly corrupts a model silently, and a slow device delays all others. Both are found within
seconds by results that are known in advance: products of small integers, which every floating-point format represents
exactly, and their sum over all devices of the world. DLRover checks its nodes in a similar way before training.

Rates and free memory are compared with those of the other devices, which are of the same kind. They are also compared
with the hardware table and the plan, because a uniformly slow world has no outlier. On `cpu` they are not compared:
hosts share processors there, so that a short delay means nothing, and the memory estimate is rough. There, a host only
logs a warning if it has less memory left than the plan needs.

Devices of a new pod on a node that failed lately are checked for longer and under load: some repairs hold only while a
device is cold. Their rates are measured after that load.

The checks run after the world was joined, because JAX allows no access to a device before. An unfit host therefore
costs a world that has not trained yet: seconds, and no step.
"""

import json
import logging
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
from trainingjob_api.world import PROBATION_CHECK_SECONDS, ExpectedHardware
from trainingjob_trainer.runtime.available_memory import available_memory
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup

LOG = logging.getLogger(__name__)
EXCHANGE_SECONDS = 300.0
"""Seconds that a host waits for the others' results: the first start of a device is slow."""
MATRIX_SIZE = 256
NUM_PATTERNS = 5
"""Number of different matrices: neighbouring devices get different ones."""
RATE_SIZE, NUM_MATMULS = 2048, 32
MIN_RATE_SHARE = 0.25
"""Share of the median rate below which a device counts as broken, not only busy."""
MIN_FREE_SHARE = 0.8
"""Share of the median free memory below which another process must hold a part of a device's memory."""
MIN_PEAK_SHARE, MIN_NETWORK_SHARE = 0.1, 0.05
"""Shares of the peak rates of matmuls and of all-reduces over all devices below which the check fails. A healthy device
reaches several times as much."""
USUAL_NETWORK_SHARE = 0.5
"""Share of the planned rate of an all-reduce below which the plan promises too much: the check warns."""
MIN_MEMORY_SHARE = 0.9
"""Share of the planned memory that a device must have: estimates are rather too high."""
ALL_REDUCE_BYTES = 64 * 2**20
"""Bytes of each device in the all-reduce whose rate is measured."""


class DeviceCapabilities(NamedTuple):
    """Measured capabilities of one device. 0: unknown, not checked."""

    flops_per_second: float
    """FLOP/s of a matmul."""
    free_bytes: float
    """Free bytes of its memory."""
    limit_bytes: float = 0.0
    """Bytes of its memory that programs may use."""


def check_world(
    mesh: Mesh,
    programs: CompileCache,
    peers: ProcessGroup,
    platform: str,
    expected: ExpectedHardware,
    *,
    num_slices: int,
    has_trained: bool,
    on_probation: bool = False,
) -> None:
    """Check the devices of a world, unless the pods of all its hosts have trained before.

    `on_probation`: the node of this host failed lately, so its devices are checked for longer.

    Raises:
        TrainingError: a device of this host is unfit, or the sum over all devices is wrong or slow.
    """
    texts = peers.exchange("proven", json.dumps(has_trained), EXCHANGE_SECONDS)
    if all(json.loads(text) for text in texts):
        return
    check_arithmetic(mesh, programs, peers)
    if on_probation:
        check_under_load(0.0 if platform == "cpu" else PROBATION_CHECK_SECONDS)
    if platform == "cpu":
        _warn_of_low_memory(expected.memory * jax.local_device_count())
        return
    own = [_measure_device(device) for device in jax.local_devices()]
    world_devices = [
        DeviceCapabilities(*values)
        for text in peers.exchange("vitals", json.dumps(own), EXCHANGE_SECONDS)
        for values in json.loads(text)
    ]
    if problem := find_unfit(own, world_devices, expected):
        raise TrainingError(FailureReason.ACCELERATOR, problem, fatal=False)
    # All hosts use the best rate, so that they decide alike: a lower rate may include a wait for another host.
    rate = max(
        float(text) for text in peers.exchange("sum", str(_measure_all_reduce(mesh, programs)), EXCHANGE_SECONDS)
    )
    if problem := find_slow_network(rate, expected, num_slices):
        raise TrainingError(FailureReason.NETWORK, problem, fatal=False)
    if problem := find_slow_network(rate, expected, num_slices, USUAL_NETWORK_SHARE):
        LOG.warning("slow network: %s Compare with the network of the pod profile.", problem)


def check_arithmetic(mesh: Mesh, programs: CompileCache, peers: ProcessGroup) -> None:
    """Compute known products on every device of a mesh, sum them over all devices, and check both results.

    Raises:
        TrainingError: a device computes wrongly, or the sum is wrong.
    """
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXES))
    seeds = np.arange(mesh.size, dtype=np.uint32)

    def compute(seeds: jax.Array) -> Any:
        found = matmul_digest(seeds[0], jnp)[None]
        return found, jax.lax.psum(found[0], AXES)

    program = programs.compile_or_load(
        "preflight",
        jax.shard_map(
            compute, mesh=mesh, in_specs=PartitionSpec(AXES), out_specs=(PartitionSpec(AXES), PartitionSpec())
        ),
        (jax.ShapeDtypeStruct(seeds.shape, seeds.dtype, sharding=split),),
        (0, 0),
        once=True,
        out_shardings=(split, replicated),
    )
    found, total = program(jax.make_array_from_callback(seeds.shape, split, lambda place: seeds[place]))
    expected = expected_digests()[seeds % NUM_PATTERNS]
    wrong = [shard.device for shard in found.addressable_shards if np.asarray(shard.data) != expected[shard.index]]
    wrong_counts = peers.exchange("preflight", str(len(wrong)), EXCHANGE_SECONDS)
    if wrong:
        raise _wrong_product(wrong[0])
    if any(text != "0" for text in wrong_counts):
        raise TrainingError(FailureReason.PEER, "a device of another host multiplies wrongly.", fatal=False)
    if np.asarray(total) != np.add.reduce(expected, dtype=np.uint32):
        message = (
            "the sum over all devices differs from the known result, though each device computes correctly: "
            "numbers change on the network between the hosts."
        )
        raise TrainingError(FailureReason.NETWORK, message, fatal=False)


def check_under_load(seconds: float) -> None:
    """Compute known products on each device of this host, again and again under load; at least all products once.

    Raises:
        TrainingError: a device computes wrongly.
    """
    digest = jax.jit(lambda seed: matmul_digest(seed, jnp))
    devices, until = jax.local_devices(), time.monotonic() + seconds
    start = time.monotonic()
    num_rounds = 0
    while not num_rounds or time.monotonic() < until:
        loads = [_multiply(jax.device_put(_ones(), device)) for device in devices] if seconds else []
        for seed, expected in enumerate(expected_digests()):
            found = [digest(jax.device_put(np.uint32(seed), device)) for device in devices]
            for device, actual in zip(devices, found, strict=True):
                if np.asarray(actual) != expected:
                    raise _wrong_product(device)
        jax.block_until_ready(loads)
        num_rounds += 1
    LOG.info("checked devices on probation seconds=%.1f rounds=%d", time.monotonic() - start, num_rounds)


def _wrong_product(device: jax.Device) -> TrainingError:
    message = (
        f"device {device.id} of this host ({device.device_kind}) multiplies wrongly: a product of small "
        "integers differs from the known result. Take the node out of service."
    )
    return TrainingError(FailureReason.ACCELERATOR, message, fatal=False)


@cache
def expected_digests() -> np.ndarray:
    """Return the digests, uint32 [PATTERNS], that the devices must compute; a standby computes them in advance."""
    return np.array([matmul_digest(pattern, np) for pattern in range(NUM_PATTERNS)], np.uint32)


def matmul_digest(seed: Any, xp: Any) -> Any:
    """Return a digest, uint32, of a product of matrices made from a seed; `xp` is NumPy, or JAX's on a device.

    Elements are integers from -2 to 2, so that the sums of `MATRIX_SIZE` products are exact in float32.
    """
    row, column = xp.arange(MATRIX_SIZE, dtype=xp.uint32)[:, None], xp.arange(MATRIX_SIZE, dtype=xp.uint32)[None, :]
    mixed = row * row + 31 * column + row * column + 67 * (seed % NUM_PATTERNS)
    left, right = (((mixed + turn) % 251 % 5).astype(xp.float32) - 2 for turn in (0, 113))
    product = (left @ right).astype(xp.int32).astype(xp.uint32)
    weights = row * xp.uint32(2654435761) + column * xp.uint32(40503) + xp.uint32(1)
    return xp.sum(product * weights, dtype=xp.uint32)


def find_unfit(
    own: Sequence[DeviceCapabilities], world_devices: Sequence[DeviceCapabilities], expected: ExpectedHardware
) -> str:
    """Return the problem of the first unfit device of a host; empty: there is none.

    A device is unfit if it is far below the median of the world's devices, or below what `expected` requires.
    """
    for number, device in enumerate(own):
        for what, unit, value, share, others in (
            (
                "multiplies matrices at",
                "TFLOP/s",
                device.flops_per_second,
                MIN_RATE_SHARE,
                [other.flops_per_second for other in world_devices],
            ),
            (
                "has free memory of",
                "TB",
                device.free_bytes,
                MIN_FREE_SHARE,
                [other.free_bytes for other in world_devices],
            ),
        ):
            usual = statistics.median(others)
            if value and value < share * usual:
                return (
                    f"device {number} of this host {what} {value / 1e12:.3g} {unit}, while half of the world's devices "
                    f"have {usual / 1e12:.3g} or more: it is broken, throttled, or used by another process."
                )
        if device.flops_per_second and device.flops_per_second < MIN_PEAK_SHARE * expected.flops:
            return (
                f"device {number} of this host multiplies matrices at {device.flops_per_second / 1e12:.3g} TFLOP/s, "
                f"and its kind does {expected.flops / 1e12:.3g} at best: it is broken, throttled, or not the "
                "accelerator that the job names."
            )
        if device.limit_bytes and device.limit_bytes < MIN_MEMORY_SHARE * expected.memory:
            return (
                f"device {number} of this host has {device.limit_bytes / 1e9:.3g} GB of memory for programs, and the "
                f"plan counts on {expected.memory / 1e9:.3g} GB: it is another accelerator, or its share is limited."
            )
    return ""


def find_slow_network(
    rate: float, expected: ExpectedHardware, num_slices: int, min_share: float = MIN_NETWORK_SHARE
) -> str:
    """Return which network is too slow for an all-reduce rate in bytes/s; empty: none, or unknown.

    Too slow is a rate below `min_share` of the planned one.

    The sum crosses both networks, so that the slower one limits it. If the rate of one is unknown, it may be that one.
    So the other one cannot be blamed: 0 is the minimum, and nothing is checked.
    """
    ways = (("the links inside a slice", expected.link), ("the network between slices", expected.network))
    what, best = min(ways[: 1 if num_slices == 1 else 2], key=lambda way: way[1])
    if not rate or rate >= min_share * best:
        return ""
    return (
        f"all devices together add up {rate / 1e9:.3g} GB/s, and {what} should carry {best / 1e9:.3g} GB/s: look at "
        "network cards, switches, cables and their drivers."
    )


def _ones() -> np.ndarray:
    return np.ones((RATE_SIZE, RATE_SIZE), jnp.bfloat16)


@jax.jit
def _multiply(x: jax.Array) -> jax.Array:
    """Return a product of `NUM_MATMULS` + 1 matrices, scaled to stay finite."""
    product: jax.Array = jax.lax.fori_loop(0, NUM_MATMULS, lambda _, y: (x @ y) / RATE_SIZE, x)
    return product


def _measure_device(device: jax.Device) -> DeviceCapabilities:
    """Return the matmul rate of a device, timed in its second run, and its free memory."""
    ones = jax.device_put(_ones(), device)
    _multiply(ones).block_until_ready()
    start = time.perf_counter()
    _multiply(ones).block_until_ready()
    seconds = time.perf_counter() - start
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    return DeviceCapabilities(
        2.0 * RATE_SIZE**3 * NUM_MATMULS / seconds, float(free), float(stats.get("bytes_limit", 0))
    )


def _measure_all_reduce(mesh: Mesh, programs: CompileCache) -> float:
    """Return the bytes/s that each device sends in an all-reduce, timed in its second run. 0: there is one device."""
    if mesh.size == 1:
        return 0.0
    split = NamedSharding(mesh, PartitionSpec(AXES))
    shape = (mesh.size, ALL_REDUCE_BYTES // 4)
    add_up = programs.compile_or_load(
        "preflight-sum",
        jax.shard_map(
            lambda ones: jax.lax.psum(ones, AXES), mesh=mesh, in_specs=PartitionSpec(AXES), out_specs=PartitionSpec()
        ),
        (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=split),),
        0,
        once=True,
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    ones = jax.make_array_from_callback(shape, split, lambda place: np.ones((1, shape[1]), np.float32))
    add_up(ones).block_until_ready()
    start = time.perf_counter()
    add_up(ones).block_until_ready()
    return 2 * ALL_REDUCE_BYTES * (mesh.size - 1) / mesh.size / (time.perf_counter() - start)


def _warn_of_low_memory(needed: int) -> None:
    """Log a warning if a host has less memory left than its devices need by the plan."""
    if (free := available_memory()) < needed:
        LOG.warning(
            "this host has less memory left than its devices need by the plan, and may be killed for memory: raise "
            "spec.runtime.resources.memory left=%d needed=%d",
            free,
            needed,
        )
