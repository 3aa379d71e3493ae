"""A plan as JSON: all derived values, under the names that they have in the plan.

Fields may be added; existing fields keep their names and meanings. Bytes, rows and counts are plain numbers.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from trainingjob_api.problem import Problem
from trainingjob_operator.core.planner.arithmetic import count_useful_flops
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan, SizePlan
from trainingjob_operator.core.planner.roofline import Roofline, predict_sizes
from trainingjob_operator.core.planner.saving import measure_save
from trainingjob_operator.core.planner.survival import slices_to_spare
from trainingjob_operator.core.planner.workload import describe_workload

type Object = dict[str, Any]


def plan_as_object(name: str, plan: Plan, warnings: Sequence[Problem]) -> Object:
    """Return a job's plan: its slice shape, every size with layout, memory and roofline, and its warnings."""
    rooflines = predict_sizes(plan)
    return {
        "name": name,
        "parameters": plan.num_parameters,
        "activeParameters": plan.num_active_parameters,
        "tokensPerStep": plan.tokens_per_step,
        "flopsPerToken": count_useful_flops(describe_workload(plan.spec)),
        "slice": {**_plain(plan.shape), "numDevices": plan.shape.num_devices},
        "allowed": list(plan.allowed),
        "choice": _plain(plan.choice),
        "snapshots": _plain(plan.snapshots),
        "saveBytesPerHost": measure_save(plan),
        "sizes": [_size(plan, one, rooflines.get(one.num_slices)) for one in plan.sizes],
        "warnings": [_plain(warning) for warning in warnings],
    }


def _size(plan: Plan, one: SizePlan, roofline: Roofline | None) -> Object:
    return {
        "slices": one.num_slices,
        "devices": one.num_slices * plan.shape.num_devices,
        "valid": one.is_valid,
        "mesh": describe_mesh(one.layout) if one.layout else "",
        "slicesToSpare": slices_to_spare(plan.spec, one.layout) if one.layout else None,
        **{name: value for name, value in _plain(one).items() if name != "numSlices"},
        "memory": {**_plain(one.memory), "total": one.memory.total} if one.memory else None,
        "roofline": {**_plain(roofline), "seconds": roofline.seconds, "isUpperBound": True} if roofline else None,
    }


def _plain(value: Any) -> Any:
    """Return a value of the plan as JSON types."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value):
        return {to_camel(field.name): _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
