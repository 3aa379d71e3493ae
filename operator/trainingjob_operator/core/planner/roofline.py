"""Lower bound of the step time, by a roofline (Williams et al., 2009): the use of each resource at its peak rate.

    step = max(products, memory, gathers inside slices, gathers between slices) + waiting

- products: the FLOPs of `flops`, at the peak rate of the compute format, or at that of the quantized type;
- memory: the bytes between a device and its memory: the gathered matrices once per pass, residuals written and read,
  the logits likewise, accumulated gradients, and the optimizer's pass over the state;
- gathers: all-gathers of parameters and reduce-scatters of gradients; the compiler overlaps them with matmuls;
- waiting: collectives that the next matmul depends on: all-reduces of hidden states over tensor, keys along context,
  tokens to experts, hidden states to the next stage, and the all-reduce of gradients over data after the last
  accumulation step; and optimizer state that moves from host memory and back.

Real steps take longer than peak rates allow, so the estimate ranks meshes and does not predict seconds. There is no
estimate for an accelerator of unknown rates, such as `cpu`, or for a job with custom sharding rules.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from trainingjob_api.base import Axis
from trainingjob_api.compile_report import Network
from trainingjob_api.network.activations import SavedActivations
from trainingjob_api.network.tensor import Gradients
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import MatmulPrecision
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.device_group import Traffic
from trainingjob_operator.core.planner.flops import count_quantized_step_flops, count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.interconnect import axis_bandwidths
from trainingjob_operator.core.planner.memory import count_offloaded_slots, estimate_workload_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan, Rates, SliceShape
from trainingjob_operator.core.planner.traffic import predict_traffic
from trainingjob_operator.core.planner.workload import FLOAT32, Workload, count_chunks_of_loss, describe_workload

MATMUL_COSTS: Mapping[str, Mapping[MatmulPrecision, int]] = {
    "tpu": {"default": 1, "high": 3, "highest": 6},  # passes in bfloat16
    "cuda": {"default": 1, "high": 1, "highest": 8},  # TensorFloat-32, then float32 without tensor cores
    "cpu": {"default": 1, "high": 1, "highest": 1},
}
"""Time of a float32 matmul at each precision, in multiples of the default."""


@dataclass(frozen=True)
class Roofline:
    """Resource use of one step on one device. Seconds are at peak rates."""

    flops: int
    """FLOPs of matmuls."""
    ici_bytes: int
    """Bytes that the device sends inside the slice."""
    dcn_bytes: int
    """Bytes that the device sends to other slices."""
    matmul_seconds: float
    memory_seconds: float
    overlapped_seconds: float
    """Seconds of transfers that overlap with matmuls: the most of both networks, and of the way to host memory."""
    exposed_seconds: float
    """Seconds of collectives that the next matmul depends on, and of optimizer state on its way from the host."""
    mfu: float
    """Model FLOPs divided by the peak FLOPs of the step time in the compute format, whatever is quantized."""

    @property
    def seconds(self) -> float:
        """Return the lower bound of the step time."""
        return max(self.matmul_seconds, self.memory_seconds, self.overlapped_seconds) + self.exposed_seconds


def knows_rates(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> bool:
    """Return whether an accelerator has every rate that the roofline of a number of slices divides by."""
    rates = shape.rates
    ici = rates.link and (rates.num_links or shape.torus)  # a torus has the links of its dims
    return bool(_peak(spec, shape) and rates.memory and ici and (rates.network or num_slices == 1))


def predict_step(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> Roofline | None:  # None: not known
    """Return the roofline of one step of a layout."""
    if not knows_rates(spec, shape, layout.num_slices) or spec.parallelism.rules.overrides():
        return None
    rates, peak = shape.rates, _peak(spec, shape)
    workload = describe_workload(spec)
    traffic = predict_traffic(workload, layout, shape.platform)
    flops = count_step_flops(workload, layout)
    roofline = Roofline(
        flops=flops,
        ici_bytes=_sum_bytes(traffic, "ici"),
        dcn_bytes=_sum_bytes(traffic, "dcn"),
        matmul_seconds=_matmul_seconds(workload, layout, flops, peak, rates),
        memory_seconds=_memory_traffic_bytes(workload, layout) / rates.memory,
        overlapped_seconds=max(
            [
                _offload_seconds(workload, shape, layout),
                *_transfer_seconds((item for item in traffic if not item.is_exposed), shape, layout).values(),
            ]
        ),
        exposed_seconds=sum(_transfer_seconds((item for item in traffic if item.is_exposed), shape, layout).values())
        + update_transfer_seconds(spec, shape, layout),
        mfu=0.0,
    )
    tokens_per_second = spec.tokens_per_world_step / roofline.seconds
    return replace(roofline, mfu=_utilization(workload, tokens_per_second, layout.num_devices * peak))


def measure_mfu(  # None: not known
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, tokens_per_second: float
) -> float | None:
    """Return the model FLOPs utilization of a measured speed, on the basis of `Roofline.mfu`."""
    peak = _peak(spec, shape)
    if not peak or spec.command_program:  # only the program knows its FLOPs
        return None
    return _utilization(describe_workload(spec), tokens_per_second, num_slices * shape.num_devices * peak)


def _utilization(workload: Workload, tokens_per_second: float, peak: float) -> float:
    return count_useful_flops(workload) * tokens_per_second / peak


def _matmul_seconds(workload: Workload, layout: Layout, flops: int, peak: float, rates: Rates) -> float:
    """Return the seconds of all matmuls, of which the quantized ones have another rate."""
    quantization = workload.precision.quantization
    if quantization is None:
        return flops / peak
    quantized = count_quantized_step_flops(workload, layout)
    return (flops - quantized) / peak + quantized / (rates.quantized(quantization.type) or peak)


def _peak(spec: TrainingJobSpec, shape: SliceShape) -> float:
    """Return the peak rate of matmuls that are not quantized. A precision above the default divides that of float32."""
    if spec.precision.compute == "bfloat16":
        return shape.rates.bfloat16
    return shape.rates.float32 / MATMUL_COSTS[shape.platform][spec.precision.matmul]


def predict_sizes(plan: Plan) -> dict[int, Roofline]:
    """Return the roofline of each valid size; empty where the accelerator's rates are unknown."""
    found = {size.num_slices: predict_step(plan.spec, plan.shape, size.layout) for size in plan.sizes if size.layout}
    return {num_slices: roofline for num_slices, roofline in found.items() if roofline}


def _sum_bytes(traffic: Iterable[Traffic], network: Network) -> int:
    return sum(item.num_bytes for item in traffic if item.network == network)


def _transfer_seconds(traffic: Iterable[Traffic], shape: SliceShape, layout: Layout) -> dict[Network, float]:
    """Return the seconds that each network needs for some traffic."""
    bandwidths = axis_bandwidths(shape, layout.ici)
    seconds: dict[Network, float] = defaultdict(float)
    for item in traffic:
        ici = sum(bandwidths[axis] for axis in item.axes if axis in bandwidths)
        rate = shape.rates.network if item.network == "dcn" else ici
        seconds[item.network] += item.num_bytes / rate
    return seconds


def _repeated_share(workload: Workload, degrees: Mapping[Axis, int]) -> float:
    """Return the share of the forward pass that the backward pass repeats: 1 if it saves the input of layers alone."""
    shard, no_saved_activations = workload.shard(degrees), SavedActivations(frozenset())
    blocks = workload.network.blocks.items()
    repeated = sum([count * block.flops(shard, workload.memory.saved).recomputed for block, count in blocks])
    full = sum([count * block.flops(shard, no_saved_activations).recomputed for block, count in blocks])
    return repeated / full if full else 0.0  # no gradient passes the layers


def _offload_seconds(workload: Workload, shape: SliceShape, layout: Layout) -> float:
    """Return the seconds in which activations move to the memory of the host and back; 0 if its rate is unknown."""
    if not shape.rates.host or not workload.memory.saved or not workload.memory.saved.on_host:
        return 0.0
    degrees = combine_degrees(layout.ici, layout.dcn)
    device = estimate_workload_memory(workload, {**degrees, "data": 1})
    num_bytes = 2 * device.offloaded_per_sequence * layout.rows_per_shard * _count_layer_passes(workload, layout)
    return num_bytes / shape.rates.host


def update_transfer_seconds(spec: TrainingJobSpec, shape: SliceShape, layout: Layout) -> float:
    """Return the seconds in which optimizer state moves from host memory and back; 0 if the rate is unknown."""
    return 2 * count_offloaded_slots(spec, layout) / shape.rates.host if shape.rates.host else 0.0


def _count_layer_passes(workload: Workload, layout: Layout) -> float:
    """Return how often a device runs the layers of its stage in a step."""
    schedule = workload.schedule(layout)
    return layout.accumulation * schedule.ticks / schedule.repeats


def _memory_traffic_bytes(workload: Workload, layout: Layout) -> float:
    """Return the bytes that move between a device and its memory in one step."""
    return sum(_model_traffic_bytes(model, layout) for model in workload.models)


def _model_traffic_bytes(workload: Workload, layout: Layout) -> float:
    degrees = combine_degrees(layout.ici, layout.dcn)
    device = estimate_workload_memory(replace(workload, memory=Memory()), {**degrees, "data": 1})
    # Stages that alternate run forward twice.
    passes = 2 + workload.pipeline.alternates(degrees["stage"]) + _repeated_share(workload, degrees)
    stage_runs = _count_layer_passes(workload, layout)
    lm_head_runs = layout.accumulation * workload.schedule(layout).lm_head_runs
    layers = device.gathered_layers
    layer_passes = (passes + 1) * layers[Gradients.ALL] + passes * layers[Gradients.INPUT] + layers[Gradients.NONE]
    matrices = layer_passes * stage_runs + (passes + 1) * device.gathered_modules * lm_head_runs
    matrices += workload.network.num_head_matmuls * device.gathered_lm_head * lm_head_runs
    residuals = passes * device.residuals_per_sequence * layout.rows_per_shard * stage_runs
    logits = 2 * device.logits_per_sequence * layout.rows_per_shard * lm_head_runs
    # Each chunk of the logits adds to the gradient of the LM head.
    num_chunks = count_chunks_of_loss(workload, degrees, layout.rows_per_shard)
    head_gradient = device.gathered_lm_head / workload.compute_bytes * workload.network.head_matrix.is_trainable
    chunk_sums = 2 * FLOAT32 * head_gradient * (num_chunks - 1) * lm_head_runs
    gradient_sums = 2 * device.gradients * layout.accumulation
    # The optimizer reads the parameter, its gradient and its slots, and writes all of them but the gradient.
    # Slots that come from the host are written and read once more.
    slots = 2 * device.optimizer + 4 * device.offloaded_slots
    update = 3 * FLOAT32 * device.gradients / workload.gradient_bytes + slots
    return matrices + residuals + logits + gradient_sums + chunk_sums + update
