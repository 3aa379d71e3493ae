"""Rules about LoRA: its targets, its rank, and what it excludes."""

from collections.abc import Iterator

from trainingjob_api.network.adapt import list_targets
from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.optimizer import ALL_TENSORS
from trainingjob_operator.core.validation.matrix_patterns import find_unmatched
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_trainable import TRAINABLE
from trainingjob_operator.core.validation.validate_weights import SOURCE

TARGETS = "spec.lora.targets"


def check_targets(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each pattern of `lora.targets` must match matrices that can have an adapter, and nothing else."""
    if spec.lora is None:
        return
    network = resolve(spec.model)
    yield from find_unmatched(TARGETS, spec.lora.targets, network, list_targets(network), "cannot have an adapter")


def check_rank(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`lora.rank` must be at most the smaller side of each matrix with an adapter."""
    if spec.lora is None:
        return
    smallest = min(_targets_of(spec, spec.lora), key=lambda tensor: min(tensor.matrix_shape), default=None)
    if smallest is not None and spec.lora.rank > min(smallest.matrix_shape):
        side = min(smallest.matrix_shape)
        message = f"{spec.lora.rank} must be at most {side}, the smaller side of {smallest.name}."
        yield Problem("spec.lora.rank", spec.lora.rank, message, (str(side),))


def check_trainable(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`optimizer.trainable` must not be set with `lora`."""
    if spec.lora and spec.optimizer.trainable != ALL_TENSORS:
        message = "must not be set with `spec.lora`, which trains its adapters alone. Remove one of both."
        yield Problem(TRAINABLE, list(spec.optimizer.trainable), message, ('["*"]',))


def check_base(spec: TrainingJobSpec) -> Iterator[Problem]:
    """LoRA requires a trained base: `checkpoint.initializeFrom`, or a folder that is taken over."""
    checkpoint = spec.checkpoint
    if spec.lora and checkpoint.initialize_from is None and not checkpoint.takeover:
        message = "must be set with `spec.lora`. Adapters of random parameters learn nothing useful."
        yield Problem(SOURCE, None, message)


def _targets_of(spec: TrainingJobSpec, lora: Lora) -> list[Tensor]:
    return [tensor for tensor in list_targets(resolve(spec.model)) if matches_any(tensor.name, lora.targets)]


RULES = (
    Rule(("lora", "model"), check_targets),
    Rule(("lora", "model"), check_rank),
    Rule(("lora", "optimizer.trainable"), check_trainable),
    Rule(("lora", "checkpoint.initializeFrom", "checkpoint.takeover"), check_base),
)
