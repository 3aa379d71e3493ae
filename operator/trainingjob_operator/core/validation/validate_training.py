"""Rules about the model and the training schedule."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.schedule import Schedule
from trainingjob_operator.core.planner.mesh import nearest_divisors
from trainingjob_operator.core.validation.rule import Rule

BYTE_VOCABULARY = 257
"""256 bytes and the end-of-document token."""


def check_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Query heads share key and value heads evenly."""
    heads, kv_heads = spec.model.num_heads, spec.model.num_kv_heads
    if heads % kv_heads:
        message = f"{kv_heads} does not divide spec.model.numHeads, {heads}."
        nearest = tuple(str(divisor) for divisor in nearest_divisors(heads, kv_heads))
        yield Problem("spec.model.numKvHeads", kv_heads, message, nearest)


def check_head_dim(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Rotary positions turn pairs of features."""
    head_dim = spec.model.head_dim
    if head_dim % 2:
        message = f"{head_dim} is odd, but rotary positions turn pairs of features."
        nearest = (str(head_dim - 1), str(head_dim + 1))
        yield Problem("spec.model.headDim", head_dim, message, nearest)


def check_vocabulary(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The vocabulary must hold every id of the byte tokenizer; other tokenizers are files that only hosts can read."""
    vocab = spec.model.vocab_size
    if spec.tokenizer.type == "byte" and vocab < BYTE_VOCABULARY:
        message = f"{vocab} is too small: the byte tokenizer has {BYTE_VOCABULARY} ids."
        yield Problem("spec.model.vocabSize", vocab, message, (str(BYTE_VOCABULARY),))


def check_warmup(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The warm-up must end before training does."""
    warmup, steps = spec.schedule.warmup_steps, spec.training.steps
    if warmup >= steps:
        message = f"{warmup} must be fewer than spec.training.steps, {steps}."
        yield Problem("spec.schedule.warmupSteps", warmup, message, (str(steps - 1),))


def warn_of_unwritten_metrics(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Metrics that are written less often than the job has steps are never written."""
    every, steps = spec.metrics.every_steps, spec.training.steps
    if every > steps:
        message = f"{every} is above spec.training.steps, {steps}: no line of metrics is ever written."
        yield Problem("spec.metrics.everySteps", every, message, (str(max(steps // 10, 1)),))


def warn_of_unused_final_fraction(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A constant learning rate has no end to decay to."""
    schedule = spec.schedule
    if schedule.type == "constant" and schedule.final_fraction != Schedule().final_fraction:
        message = "has no effect: the schedule `constant` keeps the peak learning rate to the end."
        nearest = ("spec.schedule.type: linear", "spec.schedule.type: cosine")
        yield Problem("spec.schedule.finalFraction", schedule.final_fraction, message, nearest)


def warn_of_bfloat16_parameters(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Parameters in bfloat16 lose every update below one part in 256."""
    if spec.precision.params == "bfloat16":
        message = "parameters in bfloat16 keep no update smaller than 0.4 % of their value: late training stands still."
        yield Problem("spec.precision.params", "bfloat16", message, ("float32",))


def warn_of_emulated_bfloat16(spec: TrainingJobSpec) -> Iterator[Problem]:
    """CPUs compute bfloat16 in float32 and round after each operation."""
    if spec.slices.accelerator == "cpu" and spec.precision.compute == "bfloat16":
        message = "bfloat16 is slower than float32 on cpu and less precise."
        yield Problem("spec.precision.compute", "bfloat16", message, ("float32",))


RULES = (
    Rule(("model.numHeads", "model.numKvHeads"), check_heads),
    Rule(("model.headDim",), check_head_dim),
    Rule(("model.vocabSize", "tokenizer.type"), check_vocabulary),
    Rule(("schedule.warmupSteps", "training.steps"), check_warmup),
)
WARNINGS = (
    Rule(("metrics.everySteps", "training.steps"), warn_of_unwritten_metrics),
    Rule(("schedule.type", "schedule.finalFraction"), warn_of_unused_final_fraction),
    Rule(("precision.params",), warn_of_bfloat16_parameters),
    Rule(("slices.accelerator", "precision.compute"), warn_of_emulated_bfloat16),
)
