"""`trainingjob plan`: the plan of a spec for every number of slices."""

import json
from collections.abc import Mapping

from trainingjob_api.base import is_bucket
from trainingjob_api.decoding import find_decoding_shape
from trainingjob_api.images import chart_value
from trainingjob_api.network.quantize import list_quantizable
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.checkpoint import DISK
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.schedule import Wsd
from trainingjob_operator.cli.charts import draw_memory_bars, draw_mesh
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.plan_json import plan_as_object
from trainingjob_operator.cli.plan_program import describe_entrypoint, program_headline, program_table
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.validate_command import require_valid, warning_lines
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.planner.calibration import expect
from trainingjob_operator.core.planner.choice import Candidate, Choice
from trainingjob_operator.core.planner.evaluation_memory import plan_evaluations
from trainingjob_operator.core.planner.flops import count_useful_flops
from trainingjob_operator.core.planner.memory import count_offloaded_slots, count_sample_bytes
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.redundancy import max_losable_slices
from trainingjob_operator.core.planner.replica_costs import describe_replicas
from trainingjob_operator.core.planner.roofline import Roofline, predict_sizes, update_transfer_seconds
from trainingjob_operator.core.planner.snapshots import max_first_save_bytes, max_save_bytes, required_storage_rate
from trainingjob_operator.core.planner.summary import describe_parameters, describe_sizes
from trainingjob_operator.core.planner.unsharded import find_unsharded_at_largest_size
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.units import (
    format_count,
    format_duration,
    format_percent,
    format_precise_duration,
    format_size,
    pluralize,
)
from trainingjob_operator.render.volumes import DISK_SIZE_LIMIT

SPEED_COLUMNS = ("step", "tokens/s", "MFU", "MFU bound")
"""Columns of the expected speed and the roofline's bound, shown if the accelerator's peak rates are known."""
REDUNDANCY_LEGEND = (
    "redundancy: slices that can be lost at the same time while the remaining hosts still hold every shard"
)


def print_plan(file: str, catalog: Catalog, *, as_json: bool) -> None:
    """Print the plan of a file's TrainingJob.

    Raises:
        CommandError: the file does not hold exactly one TrainingJob, or it has problems.
    """
    job = read_single_job(file)
    plan, warnings = require_valid(job, catalog)
    if as_json:
        echo(json.dumps(plan_as_object(job.name, plan, warnings), indent=2))
        return
    if plan.spec.command_program:
        for line in (program_headline(job.name, plan), "", *program_table(plan), *warning_lines(warnings)):
            echo(line)
        return
    choice_blocks = [choice_lines(plan.choice)] if plan.choice else []
    blocks = (plan_table(plan), *choice_blocks, draw_mesh(plan), draw_memory_bars(plan))
    for line in (
        headline(job.name, plan),
        *(line for block in blocks for line in ("", *block)),
        *warning_lines(warnings),
    ):
        echo(line)


def headline(name: str, plan: Plan) -> str:
    """Return the model and the hardware on one line."""
    shape = plan.shape
    flops = f"{format_count(count_useful_flops(describe_workload(plan.spec)))} FLOPs per token"
    parts = (name, describe_parameters(plan), flops, f"{shape.accelerator} {shape.topology}", describe_sizes(plan))
    return " · ".join(parts)


def plan_table(plan: Plan) -> list[str]:
    """Return a table with one row per number of slices, then the reasons for impossible sizes and the notes."""
    device = plan.shape.device_noun
    rooflines = predict_sizes(plan)
    speed_columns = SPEED_COLUMNS if rooflines else ()
    microbatches = "microbatches x " if any(size.layout and size.layout.microbatches > 1 for size in plan.sizes) else ""
    headings = (
        "slices",
        f"{device}s",
        "mesh",
        f"batch/{device} x {microbatches}accumulation",
        f"memory/{device}",
        "redundancy",
        *speed_columns,
    )
    impossible = [
        f"{pluralize(size.num_slices, 'slice')}: {size.invalid_reason}" for size in plan.sizes if not size.is_valid
    ]
    rows = [
        (*_row(plan, size), *_speed(plan, size.num_slices, rooflines.get(size.num_slices))[: len(speed_columns)])
        for size in plan.sizes
    ]
    redundancy = [REDUNDANCY_LEGEND, *_describe_shrink_delay(plan)] if len(plan.allowed_sizes) > 1 else []
    snapshots = [_snapshot_line(plan.shape, plan.snapshots)] if plan.snapshots else []
    saves = [_save_line(plan)] if plan.allowed_sizes else []
    return [
        *align([headings, *rows], right=(0, 1, *range(len(headings) - len(speed_columns), len(headings)))),
        *impossible,
        *_describe_speed(plan, rooflines),
        *redundancy,
        *snapshots,
        *describe_replicas(plan),
        *saves,
        *describe_entrypoint(plan.spec),
        *_describe_bucket(plan.spec),
        *_describe_preparation(plan.spec),
        *_describe_batches(plan.spec),
        *_describe_schedule(plan.spec),
        *_describe_trained(plan),
        *_describe_quantized(plan),
        *_describe_loss_chunks(plan),
        *_describe_evaluations(plan),
        *_describe_samples(plan),
        *_describe_default_heads(plan.spec.model),
        *_describe_unsharded(plan),
        *_describe_optimizer_memory(plan),
        *(f"{kernel.part} kernel: {kernel.name}, because {kernel.reason}" for kernel in plan.kernels),
        *([f"pod profile: {plan.shape.profile.name}"] if plan.shape.profile else []),
        *describe_image(plan),
    ]


def describe_image(plan: Plan) -> list[str]:
    """Return what names the trainer image; empty for jobs on CPUs with the image that the operator names."""
    image, platform = plan.spec.runtime.image, plan.shape.platform
    if image:
        return [f"trainer image: {image}, which `spec.runtime.image` names"]
    if platform == "cpu":
        return []
    return [f"trainer image: that of the chart's `{chart_value(platform)}`, or else of `trainer.image`"]


def _describe_preparation(spec: TrainingJobSpec) -> list[str]:
    """Return the pods of the preparation phase; empty if the hosts of the slices tokenize the text."""
    prepare = spec.data.prepare
    if prepare is None:
        return []
    count, resources = pluralize(prepare.parallelism, "pod"), prepare.resources
    verb = "tokenizes" if prepare.parallelism == 1 else "tokenize"
    pods = f"{count} of {resources.cpu} CPUs and {resources.memory}"
    return [f"preparation: {pods} {verb} the text before slices are requested"]


def _describe_shrink_delay(plan: Plan) -> list[str]:
    """Return how long the job waits after a loss before it shrinks; empty for the policy `shrink`."""
    elastic = plan.spec.elastic
    if elastic.policy == "shrink":
        return []
    limit = (
        f"as long as its past repairs justify, up to {elastic.shrink_after},"
        if elastic.policy == "auto"
        else f"up to {elastic.shrink_after}"
    )
    return [f"after a loss: waits {limit} for as many slices as before, then resumes with fewer"]


def _describe_optimizer_memory(plan: Plan) -> list[str]:
    """Return where the optimizer's state is, with its bytes and transfers; empty if the spec offloads none."""
    memory, layouts = plan.optimizer_memory, [size.layout for size in plan.sizes if size.layout]
    if memory is None:
        return []
    line = f"optimizer state: in the memory of the {memory.name}, because {memory.reason}"
    if memory.name == "device" or not layouts:
        return [line]
    first = layouts[0]
    num_bytes = count_offloaded_slots(plan.spec, first) * first.devices_per_host
    seconds = update_transfer_seconds(plan.spec, plan.shape, first)
    transfer = f", and {format_duration(seconds)} of each step to move" if seconds else ""
    return [f"{line}: up to {format_size(num_bytes)} per host{transfer}"]


def _describe_unsharded(plan: Plan) -> list[str]:
    """Return the matrices that no axis shards at the largest size, with their reasons; vectors are always small."""
    names: dict[str, list[str]] = {}
    for tensor in find_unsharded_at_largest_size(plan).tensors:
        if tensor.is_matrix:
            names.setdefault(tensor.reason, []).append(tensor.name)
    return [f"whole on every device: {', '.join(tensors)}, because {reason}" for reason, tensors in names.items()]


def _snapshot_line(shape: SliceShape, snapshots: SnapshotPlan) -> str:
    """Return the snapshot interval and its host memory or disk, and whether the host's memory size is unknown."""
    unknown = "" if shape.host_memory_bytes else f"; the host memory of {shape.accelerator} is unknown"
    if snapshots.medium == DISK:
        return (
            f"a snapshot every {pluralize(snapshots.every_steps, 'step')} needs {format_size(snapshots.volume_bytes)} "
            f"of disk on a host, and {format_size(snapshots.memory_bytes)} of its memory while it is written{unknown}"
        )
    return (
        f"a snapshot every {pluralize(snapshots.every_steps, 'step')} needs {format_size(snapshots.memory_bytes)} of "
        f"host memory: {format_size(snapshots.bytes_per_host)} each, 2 kept and 1 being written{unknown}"
    )


def _save_line(plan: Plan) -> str:
    """Return the storage rate with which a save ends in time on a deleted pod. The actual rate is unknown."""
    first, later = max_first_save_bytes(plan), max_save_bytes(plan)
    frozen = f", and the first one {format_size(first)} with the frozen tensors" if first > later else ""
    return (
        f"a save writes {format_size(later)} per host{frozen}: to finish within the "
        f"{format_duration(plan.spec.runtime.trainer_grace_seconds)} grace period of a deleted pod, storage must "
        f"accept {format_size(required_storage_rate(plan))}/s per host"
    )


def _describe_bucket(spec: TrainingJobSpec) -> list[str]:
    """Return the bucket of the checkpoints, and what hosts copy from it; empty if they are on a volume."""
    if not is_bucket(spec.checkpoint.uri):
        return []
    tokens = f"each host copies the tokens to its disk, up to {DISK_SIZE_LIMIT}"
    return [f"checkpoints: in {spec.checkpoint.uri}, without a volume; {tokens}"]


def _describe_batches(spec: TrainingJobSpec) -> list[str]:
    """Return the batch sizes by step; empty if all steps have the same."""
    first, *later = spec.training.batch_sizes
    if not later:
        return []
    changes = ", ".join(f"{size:,} from step {step:,}" for step, size in later)
    return [f"global batch: {pluralize(first[1], 'sequence')}, then {changes}; the table has the largest"]


def _describe_schedule(spec: TrainingJobSpec) -> list[str]:
    """Return the numbers of steps that shares of the schedule are."""
    schedule, steps = spec.schedule, spec.training.step_limit
    lengths = [("warm-up", schedule.warmup, schedule.warmup_steps(steps))]
    if schedule.cycles:
        lengths += [("warm-up of later cycles", schedule.cycles.warmup, schedule.later_warmup_steps(steps))]
    if schedule.type == "wsd":
        lengths += [("decay", (schedule.wsd or Wsd()).decay, schedule.decay_steps(steps))]
    cycle = f"{schedule.cycle_steps(steps):,}"
    is_known = schedule.length(spec.training.steps) is not None
    return [
        f"{name}: {pluralize(count, 'step')}, {share} of {cycle}"
        if is_known
        else f"{name}: {share} of the steps, which the hosts count from {spec.training.epochs:g} epochs of the text"
        for name, share, count in lengths
        if isinstance(share, str)
    ]


def _describe_trained(plan: Plan) -> list[str]:
    """Return the names of the tensors that training changes; empty if it changes all."""
    tensors = resolve_network(plan.spec).tensors
    trained = [tensor.name for tensor in tensors if tensor.is_trainable]
    if len(trained) == len(tensors):
        return []
    return [f"training changes {len(trained)} of {pluralize(len(tensors), 'tensor')}: {', '.join(trained)}"]


def _describe_quantized(plan: Plan) -> list[str]:
    """Return the number of matrices whose matmuls are quantized, and those left out; empty without quantization."""
    quantization = plan.spec.precision.quantization
    if quantization is None:
        return []
    network = resolve_network(plan.spec)
    matrices = [tensor.name for tensor in list_quantizable(network)]
    excluded = [name for name in matrices if name not in network.quantized]
    number = f"{len(matrices) - len(excluded)} of {len(matrices)} matrices of the layers"
    exclusions = f", without {', '.join(excluded)}" if excluded else ""
    return [f"{quantization.type} matmuls: {number}{exclusions}"]


def _describe_loss_chunks(plan: Plan) -> list[str]:
    """Return the numbers of chunks of the logits; empty if the logits of every size are whole."""
    numbers = sorted({size.loss_chunks for size in plan.sizes if size.is_valid})
    if numbers in ([], [1]):
        return []
    subject = f"a {plan.shape.device_noun} computes the logits of a microbatch"
    return [f"loss: {subject} in {' or '.join(map(str, numbers))} chunks, one after the other"]


def _describe_evaluations(plan: Plan) -> list[str]:
    """Return the batches and the memory of evaluations that limit their batch, at the size where they need most."""
    planned = [plan_evaluations(plan.spec, size) for size in plan.sizes if size.is_valid]
    largest = [max(batches, key=lambda batch: batch.memory_bytes) for batches in zip(*planned, strict=True)]
    device = plan.shape.device_noun
    return [
        f"evaluation {batch.name}: a {device} evaluates up to {pluralize(batch.rows_per_shard, 'sequence')} at once, "
        f"with at most {format_size(batch.memory_bytes)}"
        for batch, evaluation in zip(largest, plan.spec.evaluation, strict=False)
        if evaluation.max_per_device_batch is not None
    ]


def _describe_samples(plan: Plan) -> list[str]:
    """Return the cache of the text samples at the size where it is largest; empty without samples."""
    decoding = find_decoding_shape(plan.spec)
    if decoding is None:
        return []
    largest = max((count_sample_bytes(plan.spec, size) for size in plan.sizes), default=0)
    rows = f"{pluralize(decoding.rows, 'text')} of up to {decoding.length:,} tokens"
    return [f"samples: the cache of {rows} needs {format_size(largest)} per {plan.shape.device_noun}"]


def _describe_default_heads(model: Model) -> list[str]:
    """Return the heads of the model; empty if the spec sets all of their sizes."""
    if model.latent_attention or (model.num_kv_heads and model.head_dim):
        return []
    heads = model.heads
    return [
        f"heads: {heads.num_heads} for queries, {heads.num_kv_heads} for keys and values, of width {heads.head_dim}"
    ]


def choice_lines(choice: Choice) -> list[str]:
    """Return the choice of `strategy: auto`, the alternatives, and the same choice as an explicit spec."""
    best = choice.chosen
    candidates = pluralize(choice.num_candidates, "candidate")
    comparison = (
        f"auto, the best of {candidates} at the largest size: {best.describe()}{_format_step_time(choice, best)}",
        *(f"  instead of {other.describe()}{_format_step_time(choice, other)}" for other in choice.runners_up),
    )
    offload = f", offload: [{', '.join(best.offload)}]" if best.offload else ""
    mesh = f"ici: {_format_degrees(best.ici)}, dcn: {_format_degrees(best.dcn)}"
    return [
        *comparison,
        "The same as an explicit spec:",
        f"  parallelism: {{{mesh}}}",
        f"  memory: {{remat: {best.remat}{offload}}}",
    ]


def _format_step_time(choice: Choice, candidate: Candidate) -> str:
    """Return the time of a step, and its excess over the best candidate's."""
    if not choice.has_known_rates:
        return ""
    excess = candidate.score / choice.chosen.score - 1
    return f" · {format_precise_duration(candidate.step_seconds)} per step" + (
        f" (+{format_percent(excess)})" if candidate is not choice.chosen else ""
    )


def _format_degrees(degrees: AxisDegrees) -> str:
    """Return axis degrees in the notation of a spec. An unsharded mesh is written as one axis of degree 1."""
    sharded = degrees.sharded() or (("data", 1),)
    return f"{{{', '.join(f'{axis}: {degree}' for axis, degree in sharded)}}}"


def _speed(plan: Plan, num_slices: int, roofline: Roofline | None) -> tuple[str, ...]:
    if roofline is None:
        return ("",) * len(SPEED_COLUMNS)
    expected = expect(roofline, plan.shape)
    rate = format_count(plan.tokens_of_step(num_slices) / expected.seconds)
    return (
        format_precise_duration(expected.seconds),
        rate,
        format_percent(expected.mfu),
        format_percent(roofline.mfu),
    )


def _describe_speed(plan: Plan, rooflines: Mapping[int, Roofline]) -> list[str]:
    """Return the source of the speeds in the table; empty if they are unknown."""
    if not rooflines:
        return []
    expected = expect(next(iter(rooflines.values())), plan.shape)  # the share is that of the accelerator
    source = plan.shape.accelerator if expected.is_calibrated else "other accelerators of its platform"
    share = f"{format_percent(expected.reached)} of the speed at peak rates as in published runs on {source}"
    return [f"step, tokens/s, MFU: expected, {share}; MFU bound: at peak rates"]


def _row(plan: Plan, size: SizePlan) -> tuple[str, ...]:
    devices = str(size.num_slices * plan.shape.num_devices)
    layout = size.layout
    if layout is None:
        return str(size.num_slices), devices, "not possible", "", "", ""
    microbatches = f"{layout.microbatches} x " if layout.microbatches > 1 else ""
    batch = f"{layout.rows_per_shard} x {microbatches}{layout.accumulation}"
    if layout.padding_rows:
        rows = plan.spec.training.largest_batch * plan.spec.sequences_per_example
        share = layout.padding_rows / (layout.padding_rows + rows)
        batch += f"  ({format_percent(share)} padding)"
    used = format_size(size.memory.total) if size.memory else ""
    capacity = f" of {format_size(plan.shape.memory_bytes)}" if plan.shape.memory_bytes else ""
    losable = max_losable_slices(plan.spec, layout)
    return (
        str(size.num_slices),
        devices,
        describe_mesh(layout),
        batch,
        f"{used}{capacity}",
        pluralize(losable, "slice") if losable else "none",
    )
