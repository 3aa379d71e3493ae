"""A plan as JSON: all derived values, under the names that they have in the plan.

Fields may be added; existing fields keep their names and meanings. Bytes, rows and counts are plain numbers.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from trainingjob_api.images import chart_value
from trainingjob_api.problem import Problem
from trainingjob_api.shares import is_share
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.calibration import expect
from trainingjob_operator.core.planner.evaluation_memory import plan_evaluations
from trainingjob_operator.core.planner.flops import count_useful_flops
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape
from trainingjob_operator.core.planner.redundancy import max_losable_slices
from trainingjob_operator.core.planner.roofline import Roofline, predict_sizes
from trainingjob_operator.core.planner.snapshots import max_first_save_bytes, max_save_bytes
from trainingjob_operator.core.planner.unsharded import find_unsharded_at_largest_size
from trainingjob_operator.core.planner.workload import describe_workload

type Object = dict[str, Any]


def plan_as_object(name: str, plan: Plan, warnings: Sequence[Problem]) -> Object:
    """Return a job's plan: its slice shape, every size with layout, memory and roofline, and its warnings."""
    if plan.spec.command_program:
        return _program_as_object(name, plan, warnings)
    rooflines = predict_sizes(plan)
    return {
        "name": name,
        "parameters": plan.num_parameters,
        "activeParameters": plan.num_active_parameters,
        "trainableParameters": plan.num_trainable_parameters,
        "tokensPerStep": plan.tokens_per_step,
        "warmupSteps": _warmup_steps(plan.spec),
        "heads": _to_json(plan.spec.model.heads),
        "flopsPerToken": count_useful_flops(describe_workload(plan.spec)),
        "kernels": _to_json(plan.kernels),
        "optimizerMemory": _to_json(plan.optimizer_memory),
        "unsharded": _unsharded(plan),
        "slice": _shape(plan.shape),
        "trainerImage": _image(plan),
        "allowed": list(plan.allowed_sizes),
        "choice": _to_json(plan.choice),
        "snapshots": _to_json(plan.snapshots),
        "saveBytesPerHost": max_save_bytes(plan),
        "firstSaveBytesPerHost": max_first_save_bytes(plan),
        "sizes": [_size(plan, size, rooflines.get(size.num_slices)) for size in plan.sizes],
        "warnings": [_to_json(warning) for warning in warnings],
    }


def _program_as_object(name: str, plan: Plan, warnings: Sequence[Problem]) -> Object:
    """Return the plan of a job with `program`. What only the program knows is absent."""
    return {
        "name": name,
        "program": _to_json(plan.spec.command_program),
        "slice": _shape(plan.shape),
        "trainerImage": _image(plan),
        "allowed": list(plan.allowed_sizes),
        "sizes": [
            {
                "slices": size,
                "devices": size * plan.shape.num_devices,
                "processes": size * plan.shape.num_hosts,
                "valid": True,
            }
            for size in plan.allowed_sizes
        ],
        "warnings": [_to_json(warning) for warning in warnings],
    }


def _unsharded(plan: Plan) -> Object:
    """Return the tensors that are whole on every device at the largest size, with their number and share."""
    unsharded = find_unsharded_at_largest_size(plan)
    return {**_to_json(unsharded), "numParameters": unsharded.num_parameters}


def _image(plan: Plan) -> Object:
    return {"image": plan.spec.runtime.image, "chartValue": chart_value(plan.shape.platform)}


def _shape(shape: SliceShape) -> Object:
    profile = shape.profile.name if shape.profile else None
    return {**_to_json(shape), "profile": profile, "numDevices": shape.num_devices}


def _warmup_steps(spec: TrainingJobSpec) -> int | None:  # None: only the hosts know it
    """Return the length of the first warm-up."""
    length = spec.schedule.length(spec.training.steps)
    if length is None and is_share(spec.schedule.warmup):
        return None
    return int(spec.schedule.warmup_steps(spec.training.step_limit))


def _size(plan: Plan, size: SizePlan, roofline: Roofline | None) -> Object:
    return {
        "slices": size.num_slices,
        "devices": size.num_slices * plan.shape.num_devices,
        "valid": size.is_valid,
        "mesh": describe_mesh(size.layout) if size.layout else "",
        "slicesToSpare": max_losable_slices(plan.spec, size.layout) if size.layout else None,
        **{name: value for name, value in _to_json(size).items() if name != "numSlices"},
        "memory": {**_to_json(size.memory), "total": size.memory.total} if size.memory else None,
        "evaluations": _to_json(plan_evaluations(plan.spec, size)),
        "roofline": {**_to_json(roofline), "seconds": roofline.seconds, "isUpperBound": True} if roofline else None,
        "expected": _to_json(expect(roofline, plan.shape)) if roofline else None,
    }


def _to_json(value: Any) -> Any:
    """Return a value of the plan as JSON types."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value):
        return {to_camel(field.name): _to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value
