"""Rules about the tensors that training changes."""

from collections.abc import Iterator, Sequence

from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.network.tensor import Role
from trainingjob_api.network.tensor_names import nearest_patterns
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.optimizer import ALL_TENSORS
from trainingjob_operator.core.validation.rule import Rule, find_repeated

TRAINABLE = "spec.optimizer.trainable"
LEARNING_RATES = "spec.optimizer.learningRates"


def check_trainable(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each pattern of `optimizer.trainable` must match a tensor, and some tensor must have gradients."""
    patterns, tensors = spec.optimizer.trainable, resolve(spec.model).tensors
    yield from find_repeated(TRAINABLE, patterns)
    unmatched = list(_find_unmatched(TRAINABLE, patterns, [tensor.name for tensor in tensors], "tensor of the model"))
    yield from unmatched
    trained = [tensor for tensor in tensors if matches_any(tensor.name, patterns)]
    if not unmatched and all(tensor.role is Role.BALANCE for tensor in trained):
        message = "must match a tensor with gradients. Biases that balance experts have none."
        yield Problem(TRAINABLE, list(patterns), message, ('["*"]',))


def check_learning_rates(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each pattern of `optimizer.learningRates` must match a trained tensor, and be listed once."""
    names = [tensor.name for tensor in resolve_network(spec).tensors if tensor.is_trainable]
    rates = spec.optimizer.learning_rates
    for number, rate in enumerate(rates):
        path = f"{LEARNING_RATES}[{number}].tensors"
        earlier = [pattern for before in rates[:number] for pattern in before.tensors]
        repeated = [pattern for pattern in rate.tensors if pattern in earlier]
        for pattern in repeated:
            message = f"{pattern} must be listed only once. The first item that names a tensor applies."
            yield Problem(f"{path}[{rate.tensors.index(pattern)}]", pattern, message)
        yield from find_repeated(path, rate.tensors)
        yield from _find_unmatched(path, rate.tensors, names, "trained tensor")


def _find_unmatched(path: str, patterns: Sequence[str], names: Sequence[str], noun: str) -> Iterator[Problem]:
    """Yield a problem for each pattern that matches no name."""
    for number, pattern in enumerate(patterns):
        if not any(matches_any(name, (pattern,)) for name in names):
            message = f"{pattern} must match the name of a {noun}. `trainingjob plan --tensors` lists them."
            nearest = tuple(map(as_text, nearest_patterns(pattern, names)))
            yield Problem(f"{path}[{number}]", pattern, message, nearest)


def warn_of_random_frozen_tensors(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Frozen tensors of a job without initial parameters keep random values."""
    checkpoint = spec.checkpoint
    if spec.optimizer.trainable != ALL_TENSORS and checkpoint.initialize_from is None and not checkpoint.takeover:
        message = "freezes tensors with random values. Set `spec.checkpoint.initializeFrom` to start from trained ones."
        yield Problem(TRAINABLE, list(spec.optimizer.trainable), message, ('["*"]',))


RULES = (
    Rule(("optimizer.trainable", "model"), check_trainable),
    Rule(
        ("optimizer.learningRates", "optimizer.trainable", "model", "lora", "precision.quantization"),
        check_learning_rates,
    ),
)
WARNINGS = (
    Rule(
        ("optimizer.trainable", "checkpoint.initializeFrom", "checkpoint.takeover"),
        warn_of_random_frozen_tensors,
    ),
)
