"""Rules about mixtures: weights of training sources, and their changes during training."""

from collections.abc import Iterator, Mapping

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule

TRAIN = "spec.data.train"
SCHEDULE = "spec.data.weightSchedule"
MAX_NAMES = 4
"""Names of sources in a message."""


def check_weights(spec: TrainingJobSpec) -> Iterator[Problem]:
    """All sources of `data.train` must have a `weight`, or none, and one of the weights must be above 0."""
    weights = [source.weight for source in spec.data.train]
    weighted = [number for number, weight in enumerate(weights) if weight is not None]
    if weighted and len(weighted) < len(weights):
        first = quote_field(f"{TRAIN}[{weighted[0]}].weight", weights[weighted[0]])
        for number, weight in enumerate(weights):
            if weight is None:
                message = f"must be set, because {first} is. Weights are relative to each other: set all, or none."
                yield Problem(f"{TRAIN}[{number}].weight", None, message)
    elif weighted and not any(weights):
        yield Problem(f"{TRAIN}[0].weight", weights[0], _describe_zero_weights("all sources"), ("1",))


def check_weight_schedule(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A phase of `data.weightSchedule` must name sources of `data.train`, and have a weight above 0."""
    names = tuple(source.name for source in spec.data.train)
    for number, phase in enumerate(spec.data.weight_schedule):
        phase_path = f"{SCHEDULE}[{number}]"
        yield from _check_names(phase_path, phase.weights, names)
        if not any(phase.weights.values()):
            yield Problem(
                f"{phase_path}.weights", dict(phase.weights), _describe_zero_weights("the sources of a phase")
            )


def _check_names(phase_path: str, weights: Mapping[str, float], names: tuple[str, ...]) -> Iterator[Problem]:
    for name in weights:
        if name not in names:
            nearest = ", ".join(nearest_names(name, names)[:MAX_NAMES])
            message = f"{name} must be the name of a source of `spec.data.train`, such as {nearest}."
            yield Problem(f"{phase_path}.weights.{name}", name, message)


def _describe_zero_weights(owner: str) -> str:
    return f"must not be 0 for {owner}. No text would be left to train on."


def warn_of_unread_sources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A source whose weight is always 0 is never read."""
    later = {name for phase in spec.data.weight_schedule for name, weight in phase.weights.items() if weight}
    for number, source in enumerate(spec.data.train):
        if source.weight == 0 and source.name not in later:
            message = (
                f"{source.weight:g} lets the job never read `{source.name}`. Remove the source, or raise its weight."
            )
            yield Problem(f"{TRAIN}[{number}].weight", source.weight, message)


def warn_of_packed_order(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Without `data.shuffle`, `data.packing.type: bestFit` trains on the longest documents first."""
    packing = spec.data.packing
    if not spec.data.shuffle and packing and packing.type == "bestFit":
        field = quote_field("spec.data.packing.type", packing.type)
        message = f"false orders sequences as {field} makes them, from long documents to short ones."
        yield Problem("spec.data.shuffle", spec.data.shuffle, message, ("true", "spec.data.packing.type: concat"))


RULES = (
    Rule(("data.train",), check_weights),
    Rule(("data.train", "data.weightSchedule"), check_weight_schedule),
)
WARNINGS = (
    Rule(("data.train", "data.weightSchedule"), warn_of_unread_sources),
    Rule(("data.shuffle", "data.packing"), warn_of_packed_order),
)
