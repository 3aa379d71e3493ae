"""Rules about the vocabulary, the optimizer and the number formats."""

from collections.abc import Iterator

from trainingjob_api.base import Strict
from trainingjob_api.optim import SLOTS
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.validation.rule import (
    Rule,
    find_repeated,
    find_unknown_evaluation,
    find_unused_alternatives,
)

BYTE_VOCABULARY = 257
"""256 bytes and the end-of-document token."""


def check_vocabulary(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`model.vocabSize` must cover all token ids of the byte tokenizer. Only hosts can check tokenizer files."""
    vocab = spec.model.vocab_size
    if spec.tokenizer.type == "byte" and vocab < BYTE_VOCABULARY:
        message = f"{vocab} must be at least {BYTE_VOCABULARY}, the number of token ids of the byte tokenizer."
        yield Problem("spec.model.vocabSize", vocab, message, (str(BYTE_VOCABULARY),))


def check_length(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Exactly one of `training.steps` and `training.epochs` decides the length of the training."""
    steps, epochs = spec.training.steps, spec.training.epochs
    if (steps is None) == (epochs is None):
        found, advice = ("both", "Remove one of the two.") if steps else ("none", "Write the number of steps.")
        message = f"must have exactly one of `steps` and `epochs`, but has {found}. {advice}"
        yield Problem("spec.training", None, message, () if steps else ("steps: 1000", "epochs: 1"))


def check_stop_evaluation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`training.stopAtLoss.evaluation` must be the name of an evaluation."""
    if stop := spec.training.stop_at_loss:
        yield from find_unknown_evaluation("spec.training.stopAtLoss.evaluation", stop.evaluation, spec)


def check_optimizer(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Of the objects of `optimizer` that belong to a type, only the one that `optimizer.type` names may be set."""
    optimizer = spec.optimizer
    objects: dict[str, Strict | None] = {name: getattr(optimizer, name) for name in SLOTS}
    if optimizer.type == "muon" and optimizer.adamw:
        message = (
            "must not be set with `spec.optimizer.type: muon`. Move its fields to `spec.optimizer.muon.adamw`, or "
            "change the type."
        )
        value = optimizer.adamw.model_dump(by_alias=True)
        yield Problem("spec.optimizer.adamw", value, message, ("spec.optimizer.type: adamw",))
        del objects["adamw"]
    yield from find_unused_alternatives("spec.optimizer", optimizer.type, objects)


def warn_of_unused_nesterov(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`optimizer.sgd.nesterov` changes updates with momentum only."""
    sgd = spec.optimizer.sgd
    if sgd and sgd.nesterov and sgd.momentum is None:
        message = "true has no effect without momentum. Set `spec.optimizer.sgd.momentum`, or remove it."
        yield Problem("spec.optimizer.sgd.nesterov", sgd.nesterov, message, ("false",))


def check_weight_decay(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Kinds of tensors in `optimizer.weightDecay.exclude` must be unique."""
    kinds = [kind.value for kind in spec.optimizer.weight_decay.exclude]
    yield from find_repeated("spec.optimizer.weightDecay.exclude", kinds)


def warn_of_bfloat16_parameters(spec: TrainingJobSpec) -> Iterator[Problem]:
    """bfloat16 parameters lose updates below one part in 256."""
    if spec.precision.params == "bfloat16":
        message = (
            "bfloat16 parameters lose updates smaller than 0.4 % of their value. Training stalls once updates are that "
            "small."
        )
        yield Problem("spec.precision.params", "bfloat16", message, ("float32",))


def warn_of_emulated_bfloat16(spec: TrainingJobSpec) -> Iterator[Problem]:
    """CPUs compute bfloat16 in float32 and round after each operation, which is slower than float32."""
    if spec.slices.accelerator == "cpu" and spec.precision.compute == "bfloat16":
        message = "bfloat16 is slower and less precise than float32 on cpu."
        yield Problem("spec.precision.compute", "bfloat16", message, ("float32",))


RULES = (
    Rule(("model.vocabSize", "tokenizer.type"), check_vocabulary),
    Rule(("training.steps", "training.epochs"), check_length),
    Rule(("training.stopAtLoss", "evaluation"), check_stop_evaluation),
    Rule(tuple(f"optimizer.{name}" for name in ("type", *SLOTS)), check_optimizer),
    Rule(("optimizer.weightDecay.exclude",), check_weight_decay),
)
WARNINGS = (
    Rule(("optimizer.sgd",), warn_of_unused_nesterov),
    Rule(("precision.params",), warn_of_bfloat16_parameters),
    Rule(("slices.accelerator", "precision.compute"), warn_of_emulated_bfloat16),
)
