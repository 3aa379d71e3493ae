"""Checks of the sizes of a job: the smallest must be able to train, the others should.

A job waits while it has fewer slices than its smallest size, so that size must work. A larger size that cannot train is
excluded with a warning.
"""

from collections import defaultdict
from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import Pipeline
from trainingjob_api.spec.runtime import AOT_MEMORY_BYTES
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.batch_split import TARGET_MICROBATCHES_PER_STAGE
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import SizeOutcomes
from trainingjob_operator.core.planner.problem_messages import has_no_effect
from trainingjob_operator.core.planner.size_planner import OUT_OF_MEMORY_PATH
from trainingjob_operator.core.units import format_percent, format_ranges, format_size, pluralize
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import PlanWarning, SizesRule

SIZE_FIELDS = (
    "slices",
    "parallelism",
    "model",
    "training.globalBatchSize",
    "training.batchSchedule",
    "training.sequenceLength",
    "training.maxPerDeviceBatch",
    "data.packing",
    "objective.type",
    "objective.distill.teacher.model",
    "objective.distill.probabilities.perToken",
    "objective.distill.features.layers",
    "lora",
    "optimizer.type",
    "optimizer.adafactor",
    "optimizer.muon",
    "optimizer.sgd",
    "optimizer.trainable",
    "optimizer.average",
    "precision",
    "memory",
)
"""The fields that determine the plan of a size."""
MAX_PADDING_SHARE = 0.1
"""Share of padding sequences above which a warning is due."""
MAX_BUBBLE_SHARE = 0.25
"""Pipeline bubble, as a share of a stage's time, above which a warning is due."""
MIN_REPLICAS_FOR_MAJORITY = 3
"""With fewer than three replicas there is no majority."""
MIB = 2**20
_BATCH = "spec.training.globalBatchSize"
_SCHEDULE = "spec.parallelism.pipeline.schedule"
PROCESSES_BYTES = 448 * MIB
"""Measured memory of a host's processes, including standbys, without model state."""


def check_smallest_size(_spec: TrainingJobSpec, sizes: SizeOutcomes, _hardware: Hardware) -> list[Problem]:
    """The mesh must fill the smallest size, divide the model dimensions, and fit in device memory."""
    smallest = next(iter(sizes.values()), None)
    return smallest if isinstance(smallest, list) else []


def check_allowed_sizes(spec: TrainingJobSpec, sizes: SizeOutcomes, _hardware: Hardware) -> Iterator[Problem]:
    """The job must be able to train on each number of slices in `slices.allowed`."""
    for index, num_slices in enumerate(spec.slices.allowed or ()):
        outcome = sizes.get(num_slices)
        if isinstance(outcome, list) and num_slices != spec.slices.min_slices:
            message = (
                f"the job cannot train on {pluralize(num_slices, 'slice')}. `{outcome[0].path}`: {outcome[0].message}"
            )
            yield Problem(f"spec.slices.allowed[{index}]", num_slices, message)


def warn_of_excluded_sizes(_plan: Plan, sizes: SizeOutcomes) -> Iterator[Problem]:
    """The job skips larger sizes at which it cannot train."""
    reasons: dict[str, list[tuple[int, Problem]]] = defaultdict(list)
    for num_slices, outcome in sizes.items():
        for problem in outcome if isinstance(outcome, list) else ():
            reasons[problem.path].append((num_slices, problem))
    for path, found in reasons.items():
        numbers = [num_slices for num_slices, _ in found]
        _, first = found[0]
        message = (
            f"the job cannot train on {format_ranges(numbers)} slices and skips them. On "
            f"{pluralize(numbers[0], 'slice')}: {first.message}"
        )
        # A fix that saves memory works at every size. A degree or a dim that fits one size may not fit others.
        yield Problem(path, first.value, message, first.nearest if path == OUT_OF_MEMORY_PATH else ())


def warn_of_padding(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """A batch is padded at sizes whose batch shards do not divide it. The warning describes the worst size."""
    training, worlds = plan.spec.training, max(plan.spec.num_replicas, 1)
    for number, (_, batch) in enumerate(training.batch_sizes):
        field = f"batchSchedule[{number - 1}].globalBatchSize" if number else "globalBatchSize"
        layouts = [size.layout.for_batch(batch) for size in plan.sizes if size.layout]
        worst = max(layouts, key=lambda layout: layout.padding_rows)
        waste = _padding_share(batch, _batch_parts(worst) * worlds)
        if waste > MAX_PADDING_SHARE:
            shards = f"{worst.batch_shards * worlds} batch shards"
            parts = f"{worst.microbatches} microbatches on the {shards}" if worst.microbatches > 1 else shards
            message = (
                f"{batch} should fill the {parts} of {pluralize(worst.num_slices * worlds, 'slice')} evenly. At that "
                f"size, {format_percent(waste)} of the computed sequences are padding."
            )
            nearest = _nearest_batches(batch, {_batch_parts(layout) * worlds for layout in layouts})
            yield Problem(f"spec.training.{field}", batch, message, nearest)


def warn_of_pipeline_bubble(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """A pipeline with few microbatches has a large bubble. The warning describes the worst size."""
    pipeline, layouts = plan.spec.parallelism.pipeline, [size.layout for size in plan.sizes if size.layout]
    idle, worst = max(
        ((pipeline.plan(layout.microbatches, layout.num_stages).bubble_share, layout) for layout in layouts),
        key=lambda found: found[0],
    )
    if idle > MAX_BUBBLE_SHARE:
        advice, nearest = _reduce_bubble(pipeline, worst)
        message = (
            f"{worst.microbatches} microbatches in {worst.num_stages} stages leave each stage idle for "
            f"{format_percent(idle)} of the time on {pluralize(worst.num_slices, 'slice')}. {advice}"
        )
        yield Problem("spec.parallelism.pipeline.microbatches", pipeline.microbatches, message, nearest)


def _reduce_bubble(pipeline: Pipeline, layout: Layout) -> tuple[str, tuple[str, ...]]:
    """Return how to reduce the bubble of a layout, and the numbers of microbatches that do so."""
    stages, target = layout.num_stages, TARGET_MICROBATCHES_PER_STAGE * layout.num_stages
    rows = layout.rows_per_shard * layout.accumulation * layout.microbatches
    if pipeline.microbatches and rows >= pipeline.microbatches + stages:
        return "Increase the number, or use fewer stages.", (str(min(target, rows // stages * stages)),)
    if rows < target:
        both = " and this number" if pipeline.microbatches else ""
        return f"Increase `{_BATCH}`{both}, or use fewer stages.", ()
    alternating = "" if pipeline.alternates(stages) else f"`{_SCHEDULE}: oneForwardOneBackward`, "
    advice = f"Use a multiple of {target * layout.batch_shards} as `{_BATCH}`, {alternating}or fewer stages."
    return f"More microbatches do not divide the batch, or do not fit in memory. {advice}", ()


def warn_of_unsharded_optimizer(plan: Plan, sizes: SizeOutcomes) -> Iterator[Problem]:
    """`shardOptimizerOverData` has no effect if the axis `data` has degree 1 at every size."""
    del sizes
    layouts = [size.layout for size in plan.sizes if size.layout]
    is_requested = plan.spec.parallelism.shard_optimizer_over_data
    if is_requested and all(layout.ici.data * layout.dcn.data == 1 for layout in layouts):
        message = has_no_effect("the axis `data` has degree 1 in `ici` and `dcn`")
        yield Problem("spec.parallelism.shardOptimizerOverData", is_requested, message, ("false",))


def warn_of_single_replicas(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """A comparison needs two replicas to find an error, and three to identify the wrong one."""
    degrees = [size.layout.ici.data * size.layout.dcn.data for size in plan.sizes if size.layout]
    if plan.spec.protection.compare_replicas and max(degrees) < MIN_REPLICAS_FOR_MAJORITY:
        found = (
            "the axis `data` has degree 1. Only norms have replicas to compare."
            if max(degrees) == 1
            else "the axis `data` has at most degree 2. Two replicas have no majority that identifies the wrong one."
        )
        yield Problem("spec.protection.compareReplicas", None, found)


def warn_of_unused_readers(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """`readers: oneReplica` has no effect if no two replicas are on different hosts."""
    layouts = [size.layout for size in plan.sizes if size.layout]
    if plan.spec.checkpoint.restore and not any(map(_has_more_replicas, layouts)):
        message = (
            "oneReplica has no effect, because the axis `data` has no replicas on different hosts at any size. Each "
            "host reads its own shards."
        )
        yield Problem("spec.checkpoint.restore.broadcastFrom", "oneReplica", message)


def _has_more_replicas(layout: Layout) -> bool:
    return layout.dcn.data > 1 or (layout.ici.data > 1 and layout.hosts_per_slice > 1)


def warn_of_host_memory(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """On `cpu`, the memory of a host should cover the estimated memory of its devices."""
    if plan.shape.platform != "cpu":
        return
    need = _host_device_memory(plan)
    memory = plan.spec.runtime.resources.memory
    if need > parse_bytes(memory):
        message = (
            f"{memory} should be at least {format_size(need)}, the estimated memory of the "
            f"{pluralize(plan.shape.devices_per_host, 'device')} of a host. Otherwise the trainer may be OOM-killed."
        )
        yield Problem("spec.runtime.resources.memory", memory, message, _round_up(need))


def warn_of_hot_standby_memory(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """On `cpu`, compilation for a hot standby world needs memory beside the processes of a host."""
    if plan.shape.platform != "cpu" or not plan.spec.elastic.hot_standby or len(plan.spec.slices.slice_counts) < 2:
        return
    need = _host_device_memory(plan) + PROCESSES_BYTES + AOT_MEMORY_BYTES
    memory = plan.spec.runtime.resources.memory
    if need > parse_bytes(memory):
        message = (
            f"{memory} should be at least {format_size(need)} with `spec.elastic.hotStandby`, by the estimate. "
            f"Compilation ahead of time needs {format_size(AOT_MEMORY_BYTES)} of free memory beside the processes of a "
            "host. Without it, standby processes take over instead."
        )
        yield Problem("spec.runtime.resources.memory", memory, message, _round_up(need))


def _host_device_memory(plan: Plan) -> int:
    """Return the memory of a host's devices at the size where they need most."""
    return max(size.memory.total for size in plan.sizes if size.memory) * plan.shape.devices_per_host


def _round_up(memory: int) -> tuple[str]:
    return (format_bytes(-(-memory // (256 * MIB)) * 256 * MIB),)


RULES = (SizesRule(SIZE_FIELDS, check_smallest_size), SizesRule(SIZE_FIELDS, check_allowed_sizes))
WARNINGS = (
    PlanWarning(SIZE_FIELDS, warn_of_excluded_sizes),
    PlanWarning(SIZE_FIELDS, warn_of_padding),
    PlanWarning(SIZE_FIELDS, warn_of_pipeline_bubble),
    PlanWarning(SIZE_FIELDS, warn_of_unsharded_optimizer),
    PlanWarning((*SIZE_FIELDS, "protection.compareReplicas"), warn_of_single_replicas),
    PlanWarning((*SIZE_FIELDS, "checkpoint.restore"), warn_of_unused_readers),
    PlanWarning((*SIZE_FIELDS, "runtime.resources.memory"), warn_of_host_memory),
    PlanWarning((*SIZE_FIELDS, "runtime.resources.memory", "elastic.hotStandby"), warn_of_hot_standby_memory),
)


def _batch_parts(layout: Layout) -> int:
    """Return the minimum number of parts of the batch of a world. A multiple of it needs no padding."""
    return layout.batch_shards * layout.microbatches


def _padding_share(batch: int, shards: int) -> float:
    """Return the share of padding sequences in a batch that is split into `shards` parts."""
    rows = -(-batch // shards) * shards
    return (rows - batch) / rows


def _nearest_batches(batch: int, splits: set[int]) -> tuple[str, ...]:
    """Return the next smaller and the next larger batch that has little padding at every size.

    Any multiple of the most shards has little padding from ten times that number on.
    """
    largest_split = max(splits)
    multiples = range(largest_split, 11 * largest_split + 1, largest_split)
    acceptable = [
        multiple
        for multiple in multiples
        if all(_padding_share(multiple, split) <= MAX_PADDING_SHARE for split in splits)
    ]
    below = [multiple for multiple in acceptable if multiple < batch][-1:]
    above = [multiple for multiple in acceptable if multiple > batch][:1]
    return tuple(str(multiple) for multiple in (*below, *above))
