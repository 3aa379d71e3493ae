"""How long a step takes at best, by a roofline (Williams et al., 2009): what each resource needs at its peak rate.

    step = max(products, memory, gathers inside slices, gathers between slices) + what the next product waits for

- products: the operations of `arithmetic`, at the peak rate of the format of computation;
- memory: the bytes that go between a device and its memory: the gathered matrices once each way, what layers keep
  written and read, the logits likewise, gradients added up, and the optimizer's pass over the state;
- gathers: parameters and gradients along the axes that split them; the compiler sends these beside products;
- waiting: sums of the stream over tensor, keys along context, tokens to experts, the next stage, and the sum of
  gradients over data, which comes after the last microstep.

Nothing reaches a peak: real steps take longer, and this ranks meshes rather than promises seconds. An accelerator whose
rates are not known, such as `cpu`, has no prediction, nor has a job with rules of its own for how parameters are split.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainingjob_api.compiled import Network
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.arithmetic import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.interconnect import axis_rates
from trainingjob_operator.core.planner.memory import measure_workload
from trainingjob_operator.core.planner.mesh import combine
from trainingjob_operator.core.planner.plan import Plan, SliceShape
from trainingjob_operator.core.planner.traffic import Traffic, predict_traffic
from trainingjob_operator.core.planner.workload import FLOAT32, describe_workload

STATE_PASSES = 7
"""Numbers that the optimizer moves for a parameter: it reads parameter, gradient and two moments, and writes three."""


@dataclass(frozen=True)
class Roofline:
    """One step of one device, by what it needs. Seconds are those at peak rates."""

    flops: int
    """Operations of matrix products."""
    ici_bytes: int
    """Bytes sent inside the slice."""
    dcn_bytes: int
    """Bytes sent to other slices."""
    products: float
    memory: float
    gathers: float
    """Beside products, over the slower of both networks."""
    waiting: float
    """For what products wait for."""
    mfu: float
    """Useful operations by those that the peak rate allows in the time of a step."""

    @property
    def seconds(self) -> float:
        """Return how long the step takes at best."""
        return max(self.products, self.memory, self.gathers) + self.waiting


def predict_step(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> Roofline | None:  # None: nobody knows
    """Return the roofline of one step of a layout."""
    rates = shape.rates
    peak = rates.bfloat16 if spec.precision.compute == "bfloat16" else rates.float32
    is_known = peak and rates.memory and rates.link and (rates.network or layout.num_slices == 1)
    if not is_known or spec.parallelism.rules.written():
        return None
    workload = describe_workload(spec)
    traffic = predict_traffic(workload, layout, shape.platform)
    flops = count_step_flops(workload, layout)
    found = Roofline(
        flops=flops,
        ici_bytes=_sum_bytes(traffic, "ici"),
        dcn_bytes=_sum_bytes(traffic, "dcn"),
        products=flops / peak,
        memory=_move_bytes(spec, layout) / rates.memory,
        gathers=max(_send((one for one in traffic if not one.is_awaited), shape, layout).values(), default=0.0),
        waiting=sum(_send((one for one in traffic if one.is_awaited), shape, layout).values()),
        mfu=0.0,
    )
    tokens = spec.training.global_batch_size * spec.training.sequence_length
    return replace(found, mfu=count_useful_flops(workload) * tokens / (layout.num_devices * peak * found.seconds))


def predict_sizes(plan: Plan) -> dict[int, Roofline]:
    """Return the roofline of each size that can train; none where the accelerator's rates are not known."""
    found = {one.num_slices: predict_step(plan.spec, plan.shape, one.layout) for one in plan.sizes if one.layout}
    return {num_slices: roofline for num_slices, roofline in found.items() if roofline}


def _sum_bytes(traffic: Iterable[Traffic], network: Network) -> int:
    return sum(one.num_bytes for one in traffic if one.network == network)


def _send(traffic: Iterable[Traffic], shape: SliceShape, layout: Layout) -> dict[Network, float]:
    """Return the seconds that each network takes for what is sent."""
    inside = axis_rates(shape, layout.ici)
    seconds: dict[Network, float] = defaultdict(float)
    for one in traffic:
        ici = sum(inside[axis] for axis in one.axes if axis in inside)
        rate = shape.rates.network if one.network == "dcn" else ici
        seconds[one.network] += one.num_bytes / rate
    return seconds


def _move_bytes(spec: TrainingJobSpec, layout: Layout) -> float:
    """Return the bytes that go between a device and its memory in one step."""
    degrees = combine(layout.ici, layout.dcn)
    workload = describe_workload(spec)
    device = measure_workload(replace(workload, remat="none"), {**degrees, "data": 1})
    passes = 3 if workload.remat == "full" else 2
    turns = layout.accumulation * (layout.microbatches + degrees["stage"] - 1)
    reads = layout.accumulation * layout.microbatches / degrees["stage"]
    numbers = device.params / workload.param_bytes
    matrices = (passes + 1) * device.layers * turns + 3 * device.head * reads
    kept = passes * device.kept_per_row * layout.rows_per_shard * turns
    logits = 2 * device.logits_per_row * layout.rows_per_shard * reads
    sums = 2 * FLOAT32 * numbers * layout.accumulation
    return matrices + kept + logits + sums + STATE_PASSES * FLOAT32 * numbers
