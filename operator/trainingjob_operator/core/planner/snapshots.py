"""Size of the state that a host keeps or writes: snapshots in host memory with their interval, and checkpoint saves.

A host copies each shard of its devices once, without replicas: parameters and the optimizer's state slots, and
the reference of preference optimization. Each of its files keeps the tensors that training never changes from its
first snapshot, so that later copies leave them out. Training stops during the copy, so

    interval = the fewest steps with  copied bytes per host / rate <= share x interval x seconds per step

Here one thread per device copies at the slower of the device's rate (`Rates.host`) and the thread's rate (`COPY_RATE`).
The share is `TARGET_COPY_SHARE`. It rises up to `MAX_COPY_SHARE` where otherwise fewer than two snapshots would fit
between two checkpoints. Real steps take longer than the roofline estimate, so the real share is smaller. Where no step
time is known, as on `cpu`, the interval is `DEFAULT_INTERVAL_STEPS`.

A plan states the storage rate that a save requires, and not its duration: no rate is known before the first save. The
first save of a job also writes the frozen tensors, to which all later steps refer.
"""

import math
from collections.abc import Callable, Iterable

from trainingjob_api.base import Axis, seconds
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.sharding import count_shards, merge_rules
from trainingjob_api.spec.checkpoint import DISK
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan, SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.roofline import predict_step
from trainingjob_operator.core.planner.workload import describe_workload

MAX_COPY_SHARE = 0.01
"""Maximum share of the time that training may wait for copies."""
TARGET_COPY_SHARE = 0.001
"""Target share of the time for copies. At one lost slice per day, the lost steps cost about the same time, and the sum
of both is minimal (Young, 1974); `simulate` shows this."""
COPY_RATE = 5e9
"""Bytes/s that one thread writes to host memory. A single thread reached 8e9 on a small virtual machine."""
HASH_RATE = 2e9
"""Bytes/s that one thread hashes in parallel with training. A snapshot waits for the hash of the previous one. A single
thread reached 4e9 on a small virtual machine."""
DISK_RATE = 1e9
"""Bytes/s that a node's disk writes in parallel with training. Three local SSDs of Google Cloud reach 1.05e9
(documentation of Compute Engine). Hosts measure the real cost."""
DEFAULT_INTERVAL_STEPS = 10
SHARD_PADDING_BYTES = 64
"""Alignment padding of a shard, in bytes."""
_MIB = 2**20


def plan_snapshots(
    spec: TrainingJobSpec, shape: SliceShape, layouts: Iterable[Layout]
) -> SnapshotPlan | None:  # None: the job takes no snapshots
    """Return the snapshot plan of a job, valid at every size. `layouts` are those of its sizes, ascending.

    The largest size has the shortest step, the smallest size has the largest snapshot. The interval therefore follows
    from these two.
    """
    snapshots, sizes = spec.checkpoint.snapshots, list(layouts)
    if snapshots is None or not sizes:
        return None
    interval = snapshots.every_steps or max(choose_interval(spec, shape, layout) for layout in (sizes[0], sizes[-1]))
    return SnapshotPlan(
        interval,
        max_snapshot_bytes(spec, sizes),
        is_interval_chosen=snapshots.every_steps is None,
        medium=snapshots.medium,
    )


def max_snapshot_bytes(spec: TrainingJobSpec, layouts: Iterable[Layout]) -> int:
    """Return the bytes of one snapshot on a host at the size where it is largest; 0 if there are no layouts."""
    return _max_at_any_size(snapshot_bytes, spec, layouts)


def _max_at_any_size(
    count: Callable[[TrainingJobSpec, Layout], int], spec: TrainingJobSpec, layouts: Iterable[Layout]
) -> int:
    split = {tuple(_state_degrees(spec, layout).values()): layout for layout in layouts}  # most differ in `data` alone
    return max((count(spec, layout) for layout in split.values()), default=0)


def snapshot_bytes(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return the most bytes that one snapshot takes on a host.

    A host holds at most as many different shards as devices.
    """
    return _state_bytes(spec, layout, describe_workload(spec).saved_tensors)


def copied_bytes(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return the most bytes that a host copies for a snapshot after the first ones: those that training changes."""
    workload = describe_workload(spec)
    return _state_bytes(spec, layout, [leaf for leaf in workload.network.tensors if leaf.is_trainable])


def save_bytes(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return the most bytes that a host writes in a save after the first, without the frozen tensors."""
    workload = describe_workload(spec)
    frozen = workload.network.frozen_names
    return _state_bytes(spec, layout, [leaf for leaf in workload.saved_tensors if leaf.name not in frozen])


def _state_bytes(spec: TrainingJobSpec, layout: Layout, params: Iterable[Tensor]) -> int:
    """Return the bytes of parameters and of all state slots on a host."""
    degrees = _state_degrees(spec, layout)
    ways, devices = count_shards(degrees, merge_rules(spec.parallelism.rules.overrides())), layout.devices_per_host
    workload = describe_workload(spec)
    total = 0
    for leaf in params:
        param = leaf.shard_size(ways)
        total += min(devices, leaf.size // param) * (param * workload.stored_bytes(leaf) + SHARD_PADDING_BYTES)
    for leaf in workload.network.tensors:
        for state, num_bytes in workload.list_slots(leaf) if leaf.is_trainable else ():
            values = state.data_sharded_size(ways, degrees["data"])
            total += min(devices, state.size // values) * (values * num_bytes + SHARD_PADDING_BYTES)
    return -(-total // _MIB) * _MIB


def is_snapshot_compatible(spec: TrainingJobSpec, source: Layout, target: Layout) -> bool:
    """Return whether a snapshot of one size can be restored at another: both shard the state equally."""
    return _state_degrees(spec, source) == _state_degrees(spec, target)


def choose_interval(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> int:
    """Return the snapshot interval in steps: the target share where possible, and never above the maximum share."""
    step = predict_step(spec, shape, layout)
    if step is None or not shape.rates.host:
        return DEFAULT_INTERVAL_STEPS
    target_interval = math.ceil(copy_seconds(spec, shape, layout) / step.seconds / TARGET_COPY_SHARE)
    return max(
        min_interval_steps(spec, shape, layout, step.seconds),
        min(target_interval, steps_between_saves(spec, step.seconds) // 2),
    )


def min_interval_steps(spec: TrainingJobSpec, shape: SliceShape, layout: Layout, step_seconds: float) -> int:
    """Return the smallest interval in steps at which copies take at most their maximum share of the time."""
    copying = copy_seconds(spec, shape, layout) / MAX_COPY_SHARE
    return max(math.ceil(max(copying, background_seconds(spec, layout)) / step_seconds), 1)


def snapshot_cost_share(
    spec: TrainingJobSpec, shape: SliceShape, layout: Layout, every: int, step_seconds: float
) -> float:
    """Return the time that training waits for snapshots at an interval, as a share of the step time."""
    between = every * step_seconds
    waiting = max(background_seconds(spec, layout) - between, 0.0)
    return (copy_seconds(spec, shape, layout) + waiting) / between


def background_seconds(spec: TrainingJobSpec, layout: Layout) -> float:
    """Return the seconds after a copy before the next snapshot can begin: its hash, and on disk its writing."""
    snapshots = spec.checkpoint.snapshots
    rate = min(HASH_RATE, DISK_RATE) if snapshots and snapshots.medium == DISK else HASH_RATE
    return copied_bytes(spec, layout) / rate


def steps_between_saves(spec: TrainingJobSpec, step_seconds: float) -> int:
    """Return the steps between two checkpoints at a step time."""
    save = spec.checkpoint.save
    return (
        save.every_steps if save.every is None else min(save.every_steps, int(seconds(save.every) // step_seconds) or 1)
    )


def copy_seconds(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> float:
    """Return the seconds that a host needs to copy a snapshot after the first ones. No device rate: it is no limit."""
    rate = min(shape.rates.host or COPY_RATE, COPY_RATE) * shape.devices_per_host
    return copied_bytes(spec, layout) / rate


def _state_degrees(spec: TrainingJobSpec, layout: Layout) -> dict[Axis, int]:
    """Return the degrees that shard the state. `data` shards only the optimizer state, if the spec enables that."""
    degrees = combine_degrees(layout.ici, layout.dcn)
    return degrees if spec.parallelism.shard_optimizer_over_data else {**degrees, "data": 1}


def max_save_bytes(plan: Plan) -> int:
    """Return the most bytes that one host writes in a save after the first, at the size where they are most.

    The hosts that hold one replica of the state write that replica. Each of them writes as much as its snapshot of the
    replica holds.
    """
    return _max_at_any_size(save_bytes, plan.spec, _list_layouts(plan))


def max_first_save_bytes(plan: Plan) -> int:
    """Return the same for the first save of a job, which also writes the frozen tensors."""
    return max_snapshot_bytes(plan.spec, _list_layouts(plan))


def _list_layouts(plan: Plan) -> list[Layout]:
    return [size.layout for size in plan.sizes if size.layout]


def required_storage_rate(plan: Plan) -> float:
    """Return the storage rate in bytes/s per host at which a deleted pod can save within its grace period."""
    return max_save_bytes(plan) / plan.spec.runtime.trainer_grace_seconds
