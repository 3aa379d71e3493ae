"""A warning of large parameters that every device holds whole."""

from collections.abc import Iterator

from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.problem import Problem
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import SizeOutcomes
from trainingjob_operator.core.planner.problem_messages import join_words
from trainingjob_operator.core.planner.unsharded import find_unsharded
from trainingjob_operator.core.units import format_percent, format_size, pluralize
from trainingjob_operator.core.validation.rule import PlanWarning

MAX_UNSHARDED_SHARE = 0.02
"""Share of the parameters that may be whole on each device, as in MaxText (`sharding_tolerance`)."""
MAX_NAMES = 3


def warn_of_unsharded_parameters(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """Axes that shard parameters should shard all large ones."""
    layouts = [size.layout for size in plan.sizes if size.layout]
    found = [find_unsharded(plan.spec, combine_degrees(layout.ici, layout.dcn)) for layout in layouts]
    worst = max(found, key=lambda unsharded: unsharded.share)
    if worst.share <= MAX_UNSHARDED_SHARE:
        return
    names = [f"`{tensor.name}`" for tensor in worst.tensors[:MAX_NAMES]]
    others = len(worst.tensors) - len(names)
    names += [pluralize(others, "other tensor")] if others else []
    num_bytes = FLOAT_BYTES[plan.spec.precision.params] * worst.num_parameters
    message = (
        f"no axis of the mesh shards {join_words(names)}. Each device holds {format_size(num_bytes)} of them, "
        f"{format_percent(worst.share)} of all parameters, and their gradients and moments. Reason for "
        f"{names[0]}: {worst.tensors[0].reason}. Add degrees or rules that divide their dimensions."
    )
    yield Problem("spec.parallelism.rules", None, message)


PLAN_WARNINGS = (PlanWarning(("parallelism", "model", "slices"), warn_of_unsharded_parameters),)
