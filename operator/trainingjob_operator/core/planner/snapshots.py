"""Snapshots in the memory of the hosts: how large one is, and how many steps apart they are worth their time.

A host copies each shard of its devices once, replicas not counted twice: parameters, and two moments in float32. While
it is copied nothing trains, so

    interval = the fewest steps with  bytes a host / rate <= share x interval x seconds a step

where a thread for each device copies at the slower of what the device sends (`Rates.host`) and what the thread writes
(`COPY_RATE`). The share is `ENOUGH`, and up to `SHARE` where two checkpoints would not have two snapshots between them.
A step takes no less than the roofline says, so it is rather smaller. Where no honest time of a step is known, as on
`cpu`, the interval is `UNTIMED_STEPS`.
"""

import math
from collections.abc import Iterable

from trainingjob_api.base import Axis, seconds
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import count_ways, merge_rules
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine
from trainingjob_operator.core.planner.parameters import list_leaves
from trainingjob_operator.core.planner.plan import SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.roofline import predict_step
from trainingjob_operator.core.planner.workload import FLOAT32, describe_workload

SHARE = 0.01
"""Of the time that training may wait for copies."""
ENOUGH = 0.001
"""Of the time that copies are worth. Where a job loses a slice each day, that is about what its lost steps come to, and
both together are least (Young, 1974): `simulate` shows it."""
COPY_RATE = 5e9
"""Bytes/s that one thread writes to a host's memory. One alone reached 8e9 on a small virtual machine."""
HASH_RATE = 2e9
"""Bytes/s that one thread hashes, beside training; a snapshot waits for the hash of the one before. One alone reached
4e9 on a small virtual machine."""
UNTIMED_STEPS = 10
SHARD_SLACK = 64
"""Bytes by which a shard may be aligned."""
_MIB = 2**20


def plan_snapshots(
    spec: TrainingJobSpec, shape: SliceShape, layouts: Iterable[Layout]
) -> SnapshotPlan | None:  # None: the job takes none
    """Return the snapshots of a job, large and rare enough for every size; `layouts` are those of its sizes, ascending.

    A step is shortest at the largest size and a snapshot nowhere larger than at the smallest, so these two tell how
    rare is enough.
    """
    wanted, sizes = spec.checkpoint.snapshots, list(layouts)
    if wanted is None or not sizes:
        return None
    interval = wanted.every_steps or max(choose_interval(spec, shape, layout) for layout in (sizes[0], sizes[-1]))
    return SnapshotPlan(interval, measure_largest(spec, sizes), is_chosen=wanted.every_steps is None)


def measure_largest(spec: TrainingJobSpec, layouts: Iterable[Layout]) -> int:
    """Return the most bytes that one snapshot takes on a host at any of some sizes; 0: there are none."""
    split = {tuple(_split_degrees(spec, layout).values()): layout for layout in layouts}  # most differ in `data` alone
    return max((measure_snapshot(spec, layout) for layout in split.values()), default=0)


def measure_snapshot(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return the most bytes that one snapshot takes on a host: as many different shards as it has devices."""
    degrees = _split_degrees(spec, layout)
    ways, devices = count_ways(degrees, merge_rules(spec.parallelism.rules.written())), layout.devices_per_host
    param_bytes = describe_workload(spec).param_bytes
    total = 0
    for leaf in list_leaves(spec.model):
        param, moment = leaf.shard_size(ways), leaf.spread_size(ways, degrees["data"])
        total += min(devices, leaf.size // param) * (param * param_bytes + SHARD_SLACK)
        total += min(devices, leaf.size // moment) * 2 * (moment * FLOAT32 + SHARD_SLACK)
    return -(-total // _MIB) * _MIB


def serves(spec: TrainingJobSpec, taken: Layout, wanted: Layout) -> bool:
    """Return whether a snapshot taken at one size is of use at another: both cut the state in the same places."""
    return _split_degrees(spec, taken) == _split_degrees(spec, wanted)


def choose_interval(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> int:
    """Return how many steps apart copies are worth their time, and never take more than their share of it."""
    step = predict_step(spec, shape, layout)
    if step is None or not shape.rates.host:
        return UNTIMED_STEPS
    enough = math.ceil(copy_seconds(spec, shape, layout) / step.seconds / ENOUGH)
    return max(
        fewest_steps(spec, shape, layout, step.seconds), min(enough, steps_between_saves(spec, step.seconds) // 2)
    )


def fewest_steps(spec: TrainingJobSpec, shape: SliceShape, layout: Layout, step_seconds: float) -> int:
    """Return how many steps apart copies take their share of the time and no more."""
    copying = copy_seconds(spec, shape, layout) / SHARE
    hashing = measure_snapshot(spec, layout) / HASH_RATE
    return max(math.ceil(max(copying, hashing) / step_seconds), 1)


def waiting_share(spec: TrainingJobSpec, shape: SliceShape, layout: Layout, every: int, step_seconds: float) -> float:
    """Return how long training waits for snapshots that are so many steps apart, as a share of what steps take."""
    between = every * step_seconds
    hashing = measure_snapshot(spec, layout) / HASH_RATE
    return (copy_seconds(spec, shape, layout) + max(hashing - between, 0.0)) / between


def steps_between_saves(spec: TrainingJobSpec, step_seconds: float) -> int:
    """Return how many steps lie between two checkpoints where a step takes so long."""
    save = spec.checkpoint.save
    return (
        save.every_steps if save.every is None else min(save.every_steps, int(seconds(save.every) // step_seconds) or 1)
    )


def copy_seconds(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> float:
    """Return how long a host copies one snapshot; what its devices send is no limit where their rate is not known."""
    rate = min(shape.rates.host or COPY_RATE, COPY_RATE) * shape.devices_per_host
    return measure_snapshot(spec, layout) / rate


def _split_degrees(spec: TrainingJobSpec, layout: Layout) -> dict[Axis, int]:
    """Return the degrees by which the state is split; `data` splits only what the optimizer keeps, where asked."""
    degrees = combine(layout.ici, layout.dcn)
    return degrees if spec.parallelism.shard_optimizer_over_data else {**degrees, "data": 1}
