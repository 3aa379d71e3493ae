"""Rules about activation memory."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule


def check_loss_chunks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.lossChunks` must not exceed the tokens of a sequence."""
    chunks, length = spec.memory.loss_chunks, spec.training.sequence_length
    if chunks is not None and chunks > length:
        limit = quote_field("spec.training.sequenceLength", length)
        message = f"{chunks} must be at most {limit}. A chunk of the logits has one token or more."
        yield Problem("spec.memory.lossChunks", chunks, message, (str(length),))


RULES = (Rule(("memory.lossChunks", "training.sequenceLength"), check_loss_chunks),)
