"""Rules about layers that differ."""

from collections.abc import Iterator

from trainingjob_api.network.layers import LayerKind
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule

LAYERS = "spec.model.layers"


def check_leading_layers(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`layers.leading` must be at most `numLayers` layers."""
    layers, total = spec.model.layers, spec.model.num_layers
    count = sum(kind.count for kind in layers.leading) if layers else 0
    if count > total:
        message = f"{count} leading layers must be at most {quote_field('spec.model.numLayers', total)}."
        yield Problem(f"{LAYERS}.leading", None, message, (f"spec.model.numLayers: {count}",))


def check_kinds(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A kind of layer must refer to options that the model has."""
    model = spec.model
    sizes = {"window": model.attention.window, "chunk": model.attention.chunk}
    for path, kind in _find_kinds(spec):
        if kind.attention in sizes and sizes[kind.attention] is None:
            field = f"spec.model.attention.{kind.attention}"
            message = f"{kind.attention} must not be used without `{field}`."
            yield Problem(f"{path}.attention", kind.attention, message, ("full", f"{field}: 4096"))
        if kind.feed_forward == "experts" and model.experts is None:
            message = "experts must not be used without `spec.model.experts`."
            yield Problem(f"{path}.feedForward", kind.feed_forward, message, ("dense",))
        if kind.rope and (kind.positions or model.positions) != "rope":
            message = f"must not be set in layers with `positions: {kind.positions or model.positions}`. Remove it."
            yield Problem(f"{path}.rope", kind.rope.model_dump(by_alias=True), message, (f"{path}.positions: rope",))


def warn_of_dense_layers(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Without experts, all layers are dense."""
    for path, kind in _find_kinds(spec):
        if kind.feed_forward == "dense" and spec.model.experts is None:
            message = has_no_effect("`spec.model.experts` is not set", "dense")
            yield Problem(f"{path}.feedForward", kind.feed_forward, message)


def warn_of_unused_kinds(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A kind after the last layer has no effect."""
    layers, model = spec.model.layers, spec.model
    if layers is None:
        return
    first = sum(kind.count for kind in layers.leading)
    for number, kind in enumerate(layers.pattern):
        if number and first >= model.num_layers:
            reason = f"the {quote_field('spec.model.numLayers', model.num_layers)} layers end before it"
            yield Problem(f"{LAYERS}.pattern[{number}]", None, has_no_effect(reason, "the kind"))
        first += kind.count


def _find_kinds(spec: TrainingJobSpec) -> Iterator[tuple[str, LayerKind]]:
    """Yield all kinds of layers with their paths."""
    layers = spec.model.layers
    if layers:
        for section, kinds in (("leading", layers.leading), ("pattern", layers.pattern)):
            for number, kind in enumerate(kinds):
                yield f"{LAYERS}.{section}[{number}]", kind


_READS = ("model.layers", "model.attention", "model.experts", "model.positions")

RULES = (Rule(("model.layers", "model.numLayers"), check_leading_layers), Rule(_READS, check_kinds))
WARNINGS = (
    Rule(("model.layers", "model.experts"), warn_of_dense_layers),
    Rule(("model.layers", "model.numLayers"), warn_of_unused_kinds),
)
