"""Rules about mixture-of-experts models."""

from collections.abc import Iterator

from trainingjob_api.network.attention_kernel import TPU
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware import CPU
from trainingjob_operator.core.planner.mesh import divisors, nearest_divisors
from trainingjob_operator.core.planner.problem_messages import must_divide, quote_field
from trainingjob_operator.core.units import format_percent, pluralize
from trainingjob_operator.core.validation.rule import Rule

PATH = "spec.model.experts"
MIN_WASTE = 4
"""Slots of an expert for each token that it gets on average, from which a warning is due."""
LOW_CAPACITY = 2
"""Capacity factor that the warning names where dropless experts have no kernel."""
MAX_ROUTING_COST = 0.5
"""Cost of routing tokens to experts and back, as a share of the experts' FLOPs, above which a warning is due."""


def check_per_token(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`experts.perToken` must be at most `experts.count`."""
    experts = spec.model.experts
    if experts and experts.per_token > experts.count:
        message = f"{experts.per_token} must be at most {quote_field(f'{PATH}.count', experts.count)}."
        yield Problem(f"{PATH}.perToken", experts.per_token, message, (str(experts.count),))


def check_expert_groups(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Groups of experts must be equal, and those of a token must hold its experts."""
    experts, groups = spec.model.experts, spec.model.experts.groups if spec.model.experts else None
    if experts is None or groups is None:
        return
    path = f"{PATH}.groups"
    if experts.count % groups.count:
        message = must_divide(groups.count, [quote_field(f"{PATH}.count", experts.count)])
        nearest = tuple(str(near) for near in nearest_divisors(experts.count, groups.count) if near > 1)
        yield Problem(f"{path}.count", groups.count, message, nearest)
        return
    size = experts.count // groups.count
    if groups.score == "sumOfTwo" and size == 1:
        message = "must be `best` with one expert in each group."
        yield Problem(f"{path}.score", groups.score, message, ("best",))
    if groups.per_token > groups.count:
        message = f"{groups.per_token} must be at most {quote_field(f'{path}.count', groups.count)}."
        yield Problem(f"{path}.perToken", groups.per_token, message, (str(groups.count),))
    elif groups.per_token * size < experts.per_token <= experts.count:
        message = (
            f"{groups.per_token} must be higher: its groups of {pluralize(size, 'expert')} hold fewer experts than "
            f"{quote_field(f'{PATH}.perToken', experts.per_token)}."
        )
        yield Problem(f"{path}.perToken", groups.per_token, message, (str(-(-experts.per_token // size)),))


def check_router_weights(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`experts.normalizeWeights` must be false with one expert per token: the router would not learn from the loss."""
    experts = spec.model.experts
    if experts and experts.normalize_weights and experts.per_token == 1:
        message = (
            f"must be false with {quote_field(f'{PATH}.perToken', 1)}. The weight of a token's only expert would be 1, "
            "and the router would learn nothing from the loss."
        )
        yield Problem(f"{PATH}.normalizeWeights", experts.normalize_weights, message, ("false",))


def check_group_length(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`experts.groupLength` must divide `training.sequenceLength`."""
    experts, length = spec.model.experts, spec.training.sequence_length
    if experts and experts.group_length and length % experts.group_length:
        message = must_divide(experts.group_length, [quote_field("spec.training.sequenceLength", length)])
        nearest = tuple(str(near) for near in nearest_divisors(length, experts.group_length))
        yield Problem(f"{PATH}.groupLength", experts.group_length, message, nearest)


def warn_of_excess_capacity(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Expert capacity beyond all tokens of a routing group is never used."""
    experts = spec.model.experts
    if not experts or experts.dispatch == "dropless":
        return
    if experts.per_token <= experts.count < experts.capacity_factor * experts.per_token:
        useful_capacity = experts.full_capacity
        message = (
            f"{experts.capacity_factor:g} should be at most {useful_capacity:g}. At that factor, each expert has "
            "capacity for all tokens of a routing group."
        )
        yield Problem(f"{PATH}.capacityFactor", experts.capacity_factor, message, (f"{useful_capacity:g}",))


def warn_of_slots_for_all(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Slots for all tokens at each expert cost many times what the tokens of the experts do."""
    experts = spec.model.experts
    if experts is None or experts.dispatch == "dropless" or experts.count < MIN_WASTE * experts.per_token:
        return
    if spec.slices.accelerator == CPU or experts.capacity_factor < experts.full_capacity:
        return
    factor = quote_field(f"{PATH}.capacityFactor", f"{experts.capacity_factor:g}")
    waste = f"each expert computes slots for all tokens, {experts.full_capacity:g} times what it gets on average."
    if _has_expert_kernel(spec):
        message = f"should be dropless. With {factor}, {waste}"
        yield Problem(f"{PATH}.dispatch", experts.dispatch, message, ("dropless",))
    else:
        message = (
            f"{experts.capacity_factor:g} should be lower, although tokens without a slot then skip an expert: {waste} "
            f"`dispatch: dropless` costs even more on {spec.slices.accelerator}."
        )
        yield Problem(f"{PATH}.capacityFactor", experts.capacity_factor, message, (f"{LOW_CAPACITY:g}",))


def warn_of_dropless_without_kernel(spec: TrainingJobSpec) -> Iterator[Problem]:
    """On accelerators other than TPUs, dropless experts compute each row with the matrices of all experts."""
    experts = spec.model.experts
    if experts is None or experts.dispatch == "capacity" or _has_expert_kernel(spec):
        return
    message = (
        f"dropless computes each row with the matrices of all {experts.count} experts on {spec.slices.accelerator}, "
        "and holds a copy of the row for each. The plan counts neither. "
    )
    if spec.slices.accelerator == CPU:
        yield Problem(f"{PATH}.dispatch", experts.dispatch, message + "Use it there only to try out a job.")
        return
    products = experts.count * experts.per_token
    message += (
        f"Each token takes part in {products} products with an expert, and with `capacity` in at most {experts.count}."
    )
    yield Problem(f"{PATH}.dispatch", experts.dispatch, message, ("capacity",))


def _has_expert_kernel(spec: TrainingJobSpec) -> bool:
    """Return whether XLA multiplies the rows of each expert by its matrix alone. Its GPU compiler does not by default.

    There `xla_gpu_experimental_use_ragged_dot_fusion` is off. Gradients of matrices are dense even with it.
    """
    return spec.slices.accelerator.startswith(TPU)


def warn_of_low_capacity(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A capacity factor below 1 drops tokens even if all experts get equally many."""
    experts = spec.model.experts
    if experts and experts.dispatch == "capacity" and experts.capacity_factor < 1:
        message = (
            f"{experts.capacity_factor:g} should be at least 1. Otherwise at least "
            f"{format_percent(1 - experts.capacity_factor)} of the router's token assignments exceed the expert "
            "capacity and are dropped."
        )
        yield Problem(f"{PATH}.capacityFactor", experts.capacity_factor, message, ("1",))


def warn_of_long_routing_groups(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Routing tokens costs more in long routing groups, and can cost more than the experts themselves."""
    experts, length = spec.model.experts, spec.training.sequence_length
    if experts is None or experts.dispatch == "dropless" or length % (tokens := experts.group_size(length)):
        return
    width = experts.mlp_dim or spec.model.mlp_dim
    if _routing_cost(tokens, width) > MAX_ROUTING_COST:
        message = (
            f"routing groups of {tokens} tokens should be shorter. Routing to experts of width {width} and back costs "
            f"{format_percent(_routing_cost(tokens, width))} of the experts' FLOPs."
        )
        acceptable = [divisor for divisor in divisors(length) if _routing_cost(divisor, width) <= MAX_ROUTING_COST / 2]
        yield Problem(
            f"{PATH}.groupLength", experts.group_length, message, tuple(str(divisor) for divisor in acceptable[-1:])
        )


def _routing_cost(tokens: int, width: int) -> float:
    """Return the cost of routing tokens to capacity slots and back, as a share of the experts' FLOPs.

    Each slot costs a matmul with all tokens of the group in both directions. An expert does three matmuls with its
    width.
    """
    return 2 * tokens / (3 * width)


_EXPERTS = ("model.experts",)

RULES = (
    Rule(_EXPERTS, check_per_token),
    Rule(_EXPERTS, check_expert_groups),
    Rule(_EXPERTS, check_router_weights),
    Rule((*_EXPERTS, "training.sequenceLength"), check_group_length),
)
WARNINGS = (
    Rule(_EXPERTS, warn_of_excess_capacity),
    Rule((*_EXPERTS, "slices.accelerator"), warn_of_slots_for_all),
    Rule((*_EXPERTS, "slices.accelerator"), warn_of_dropless_without_kernel),
    Rule(_EXPERTS, warn_of_low_capacity),
    Rule((*_EXPERTS, "training.sequenceLength", "model.mlpDim"), warn_of_long_routing_groups),
)
