"""Rules about the tensors that training changes."""

from collections.abc import Iterator

from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Role
from trainingjob_api.network.tensor_names import nearest_patterns
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.optimizer import ALL_TENSORS
from trainingjob_operator.core.validation.rule import Rule, find_repeated

TRAINABLE = "spec.optimizer.trainable"


def check_trainable(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each pattern of `optimizer.trainable` must match a tensor, and some tensor must have gradients."""
    patterns, tensors = spec.optimizer.trainable, resolve(spec.model).tensors
    yield from find_repeated(TRAINABLE, patterns)
    names = [tensor.name for tensor in tensors]
    has_match = True
    for number, pattern in enumerate(patterns):
        if not any(matches_any(name, (pattern,)) for name in names):
            has_match = False
            message = (
                f"{pattern} must match the name of a tensor of the model. `trainingjob plan --tensors` lists them."
            )
            yield Problem(
                f"{TRAINABLE}[{number}]", pattern, message, tuple(map(as_text, nearest_patterns(pattern, names)))
            )
    trained = [tensor for tensor in tensors if matches_any(tensor.name, patterns)]
    if has_match and all(tensor.role is Role.BALANCE for tensor in trained):
        message = "must match a tensor with gradients. Biases that balance experts have none."
        yield Problem(TRAINABLE, list(patterns), message, ('["*"]',))


def warn_of_random_frozen_tensors(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Frozen tensors of a job without initial parameters keep random values."""
    checkpoint = spec.checkpoint
    if spec.optimizer.trainable != ALL_TENSORS and checkpoint.initialize_from is None and not checkpoint.takeover:
        message = "freezes tensors with random values. Set `spec.checkpoint.initializeFrom` to start from trained ones."
        yield Problem(TRAINABLE, list(spec.optimizer.trainable), message, ('["*"]',))


RULES = (Rule(("optimizer.trainable", "model"), check_trainable),)
WARNINGS = (
    Rule(
        ("optimizer.trainable", "checkpoint.initializeFrom", "checkpoint.takeover"),
        warn_of_random_frozen_tensors,
    ),
)
