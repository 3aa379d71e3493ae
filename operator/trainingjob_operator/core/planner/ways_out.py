"""Ways out for a job that is too large for its devices: the smallest changes of the spec that would fit."""

from bisect import bisect_left
from dataclasses import replace
from functools import cache

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import as_text
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import SizePlan, SliceShape
from trainingjob_operator.core.planner.planning import LazySizes
from trainingjob_operator.core.planner.sizes import TOO_LARGE, SizePlanner


def suggest_ways_out(sizes: LazySizes, spec: TrainingJobSpec, shape: SliceShape, hardware: Hardware) -> LazySizes:
    """Return the sizes with suggestions for the first that is too large.

    It speaks for all: what saves memory does so at every size, and each search plans the job many times. Nothing is
    told of other sizes where the job cannot train at the smallest.
    """
    for num_slices, outcome in sizes.items():
        if isinstance(outcome, SizePlan):
            continue
        if any(problem.path == TOO_LARGE for problem in outcome):
            ways = tuple(_find_ways_out(spec, shape, num_slices, hardware))
            told = [replace(problem, nearest=ways) if problem.path == TOO_LARGE else problem for problem in outcome]
            return sizes.tell(num_slices, told)
        if num_slices == next(iter(sizes)):
            break
    return sizes


def _find_ways_out(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, hardware: Hardware) -> list[str]:
    """Return the smallest changes that would fit; a shorter sequence only where nothing else does."""
    shapes = [
        shape,
        *(hardware.find_shape(shape.accelerator, topology) for topology in hardware.larger_topologies(shape)),
    ]
    memory = spec.memory.model_copy(update={"remat": "full"})
    over_data = spec.parallelism.model_copy(update={"shard_optimizer_over_data": True})
    changes = (
        (spec.model_copy(update={"memory": memory}), shapes),
        (spec.model_copy(update={"parallelism": over_data}), shapes[:1]),
        (spec, shapes),
    )

    @cache
    def find(length: int) -> list[str]:
        ways = []
        training = spec.training.model_copy(update={"sequence_length": length})
        for change, on in changes:
            changed = change.model_copy(update={"training": training})
            fitting = next((one for one in on if one and _fits(changed, one, num_slices)), None)
            if fitting:
                ways.append(_describe_change(spec, shape, changed, fitting))
        return ways

    whole = spec.training.sequence_length
    ways = find(whole)
    if not ways:  # the longest of the halved sequences that fits, by bisection: a shorter one takes less memory
        halved = [whole >> halvings for halvings in range(1, whole.bit_length() - 1)]
        fitting = halved[bisect_left(halved, True, key=lambda length: bool(find(length))) :]  # noqa: FBT003
        ways = find(fitting[0]) if fitting else []
    # What a part of the changes does alone needs no more of them.
    parts = {way: set(way.split(" and ")) for way in ways}
    return [way for way in parts if not any(other < parts[way] for other in parts.values())]


def _fits(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> bool:
    return isinstance(SizePlanner(spec, shape).plan(num_slices), SizePlan)


def _describe_change(spec: TrainingJobSpec, shape: SliceShape, changed: TrainingJobSpec, fitting: SliceShape) -> str:
    """Return the fields in which a changed spec differs, with their new values."""
    values = {
        "spec.slices.topology": (as_text(shape.topology), as_text(fitting.topology)),
        "spec.memory.remat": (spec.memory.remat, changed.memory.remat),
        "spec.parallelism.shardOptimizerOverData": (
            spec.parallelism.shard_optimizer_over_data,
            changed.parallelism.shard_optimizer_over_data,
        ),
        "spec.training.sequenceLength": (spec.training.sequence_length, changed.training.sequence_length),
    }
    return " and ".join(f"{field}: {_write(new)}" for field, (old, new) in values.items() if new != old)


def _write(value: object) -> str:
    """Return a value as YAML has it."""
    return "true" if value is True else str(value)
