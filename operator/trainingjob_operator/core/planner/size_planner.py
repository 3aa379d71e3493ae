"""The plan of one size: whether the job can train on a number of slices, and the resulting layout."""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher, move_to_teacher
from trainingjob_api.world import BatchLayout, Layout
from trainingjob_operator.core.planner.batch_split import (
    BatchSplit,
    accumulates,
    plan_fewest_microbatches,
    split_batch,
)
from trainingjob_operator.core.planner.divisibility import (
    DCN,
    HEADS,
    ICI,
    Mesh,
    check_divisible,
    check_experts,
    check_model_width,
    check_routing_groups,
    check_sequence,
    check_sharding_rules,
    check_stages,
)
from trainingjob_operator.core.planner.memory import USABLE_MEMORY_SHARE, DeviceMemory, estimate_device_memory
from trainingjob_operator.core.planner.mesh import (
    check_degree_form,
    check_degree_product,
    combine_degrees,
    nearest_multiples,
    resolve_degrees,
)
from trainingjob_operator.core.planner.plan import MemoryEstimate, SizePlan, SliceShape
from trainingjob_operator.core.planner.workload import count_chunks_of_loss, describe_workload
from trainingjob_operator.core.units import format_size, pluralize

OUT_OF_MEMORY_PATH = "spec.model"
"""Path of the problem that a device has too little memory. No other problem of a size has this path."""


class SizePlanner:
    """Plans the sizes of one job.

    Sizes share most degrees except `data`, so device memory is cached by the other degrees.
    """

    def __init__(self, spec: TrainingJobSpec, shape: SliceShape) -> None:
        """Plan a spec on slices of a shape.

        Slices that train as replicas are each in a world of one slice, with an equal part of the batch.
        """
        self._spec = spec
        self._shape = shape
        self._ici = resolve_degrees(spec.parallelism.ici, shape.num_devices)
        self._degree_problems = _check_slice(spec, shape)
        self._devices: dict[tuple[int, ...], DeviceMemory | list[Problem]] = {}
        """Device memory, or the dims that the mesh does not divide, by the DCN degrees that shard more than the
        batch."""

    def plan(self, num_slices: int) -> SizePlan | list[Problem]:
        """Return the plan for a number of slices, or the problems that prevent training at that size."""
        result = self._try(num_slices)
        return [self._out_of_memory_problem(num_slices, result)] if isinstance(result, MemoryEstimate) else result

    def fit(self, num_slices: int) -> SizePlan | None:
        """Return the plan for a number of slices; None if the job cannot train at that size."""
        result = self._try(num_slices)
        return result if isinstance(result, SizePlan) else None

    def _try(self, num_slices: int) -> SizePlan | MemoryEstimate | list[Problem]:
        """Return the plan for a number of slices, the memory of one sequence if it does not fit, or other problems."""
        spec, shape, world_slices = self._spec, self._shape, 1 if self._spec.num_replicas else num_slices
        dcn = resolve_degrees(spec.parallelism.dcn, world_slices)
        if self._ici is None or dcn is None:
            outer = check_degree_product(DCN, spec.parallelism.dcn, world_slices, pluralize(world_slices, "slice"))
            return [*self._degree_problems, *outer]
        mesh = Mesh(self._ici, dcn)
        degrees = combine_degrees(mesh.ici, mesh.dcn)
        is_optimizer_sharded = spec.parallelism.shard_optimizer_over_data
        key = tuple([degree for axis, degree in dcn.items() if axis != "data" or is_optimizer_sharded])
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = _check_splits(spec, mesh) or estimate_device_memory(spec, degrees)
        if isinstance(device, list):
            return device
        keeps_embedding = degrees["data"] == 1 or shape.platform == "cpu"

        def split(batch: int) -> BatchSplit | None:  # None: not even one example fits
            part = batch // max(spec.num_replicas, 1)
            memory = shape.memory_bytes
            return split_batch(spec, degrees, device, memory, keeps_table=keeps_embedding, global_batch_size=part)

        batch = split(spec.training.largest_batch)
        if batch is None:
            is_accumulated = accumulates(spec, degrees)
            fewest = plan_fewest_microbatches(spec, degrees)
            return device.estimate(
                spec.sequences_per_example,
                fewest.saved_microbatches,
                microbatches=fewest.microbatches,
                keeps_embedding=keeps_embedding and is_accumulated,
                accumulates=is_accumulated,
            )
        worlds, largest, per_example = (
            max(spec.num_replicas, 1),
            spec.training.largest_batch,
            spec.sequences_per_example,
        )
        smaller = {
            size: split(size) or batch.pad((largest - size) // worlds * per_example)
            for size in spec.training.smaller_batches
        }
        layout = Layout(
            num_slices=world_slices,
            hosts_per_slice=shape.num_hosts,
            devices_per_host=shape.devices_per_host,
            ici=mesh.ici,
            dcn=mesh.dcn,
            rows_per_shard=batch.sequences,
            accumulation=batch.accumulation,
            microbatches=batch.microbatches,
            padding_rows=batch.padding,
            smaller_batches=tuple(_describe_split(size, batch_split) for size, batch_split in smaller.items()),
        )
        estimates = [
            device.estimate(
                batch_split.sequences,
                batch_split.saved_microbatches,
                microbatches=batch_split.microbatches,
                keeps_embedding=keeps_embedding and batch_split.accumulation > 1,
                accumulates=batch_split.accumulation > 1,
            )
            for batch_split in (batch, *smaller.values())
        ]
        return SizePlan(
            num_slices,
            layout,
            max(estimates, key=lambda estimate: estimate.total),
            loss_chunks=count_chunks_of_loss(describe_workload(spec), degrees, batch.sequences),
        )

    def _out_of_memory_problem(self, num_slices: int, memory: MemoryEstimate) -> Problem:
        return Problem(
            OUT_OF_MEMORY_PATH,
            self._model,
            f"must fit in the {format_size(int(self._shape.memory_bytes * USABLE_MEMORY_SHARE))} of usable memory of a "
            f"{self._shape.accelerator} device. {self._example} on {pluralize(num_slices, 'slice')} needs about "
            f"{format_size(memory.total)} per device ({_describe_memory(memory)}).",
        )

    @property
    def _example(self) -> str:
        return "One sequence" if self._spec.sequences_per_example == 1 else "One pair of sequences"

    @cached_property
    def _model(self) -> dict[str, Any]:
        return self._spec.model.model_dump(by_alias=True)


def _describe_split(global_batch_size: int, split: BatchSplit) -> BatchLayout:
    return BatchLayout(
        global_batch_size=global_batch_size,
        rows_per_shard=split.sequences,
        accumulation=split.accumulation,
        microbatches=split.microbatches,
        padding_rows=split.padding,
    )


class PlanCounter:
    """Plans sizes and counts them, as a measure of cost that does not depend on the machine."""

    def __init__(self, max_host_bytes: int | None = None) -> None:
        """Start at zero. A size whose devices take more host memory than `max_host_bytes` each counts as too large."""
        self.num_plans = 0
        self._max_host_bytes = max_host_bytes

    def fit(self, planner: SizePlanner, num_slices: int) -> SizePlan | None:
        """Return the plan of one size; None if the job cannot train at that size."""
        self.num_plans += 1
        size = planner.fit(num_slices)
        if size and size.memory and self._max_host_bytes is not None and size.memory.host > self._max_host_bytes:
            return None
        return size


def check_microbatches(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that the stages of a pipeline divide its microbatches."""
    microbatches, stages = spec.parallelism.pipeline.microbatches, mesh.ici.stage * mesh.dcn.stage
    if microbatches is not None and microbatches % stages:
        message = f"{microbatches} must be a multiple of the number of pipeline stages ({stages})."
        nearest = tuple(str(multiple) for multiple in nearest_multiples(stages, microbatches))
        yield Problem("spec.parallelism.pipeline.microbatches", microbatches, message, nearest)


def describe_slice(shape: SliceShape) -> str:
    """Return a description of a slice's devices, for messages about the degrees that must fill them."""
    return f"the {pluralize(shape.num_devices, 'device')} of a slice of {shape.accelerator} {shape.topology}"


def _check_splits(spec: TrainingJobSpec, mesh: Mesh) -> list[Problem]:
    """Check that the mesh divides the dims that it shards. `data` does not matter, because it splits only the batch."""
    problems, teacher = _check_model_splits(spec, mesh), describe_teacher(spec)
    of_teacher = map(move_to_teacher, _check_model_splits(teacher, mesh) if teacher else ())
    return [*problems, *(problem for problem in of_teacher if problem not in problems)]


def _check_model_splits(spec: TrainingJobSpec, mesh: Mesh) -> list[Problem]:
    """Check that the mesh divides the dims of a model, and the sequences."""
    return [
        *check_sequence(spec, mesh, is_filled=True),
        *check_divisible(spec, HEADS, mesh, is_filled=True),
        *check_stages(spec, mesh, is_filled=True),
        *check_model_width(spec, mesh, is_filled=True),
        *check_sharding_rules(spec, mesh),
        *check_experts(spec, mesh, is_filled=True),
        *check_routing_groups(spec, mesh),
        *check_microbatches(spec, mesh),
    ]


def _check_slice(spec: TrainingJobSpec, shape: SliceShape) -> tuple[Problem, ...]:
    """Check the degrees independently of the number of slices: their form, and that they fill a slice."""
    ici, dcn = spec.parallelism.ici, spec.parallelism.dcn
    inner = check_degree_product(ICI, ici, shape.num_devices, describe_slice(shape))
    return (*check_degree_form(ICI, ici), *check_degree_form(DCN, dcn), *inner)


@lru_cache(maxsize=64)  # most sizes need the same memory
def _describe_memory(need: MemoryEstimate) -> str:
    parts = {
        "parameters": need.params,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "temporaries": need.temporaries,
    }
    return ", ".join(f"{name} {format_size(num_bytes)}" for name, num_bytes in parts.items())
