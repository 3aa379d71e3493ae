"""Rules about number formats and the precision of matmuls."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule

COMPUTE = "spec.precision.compute"


def check_logits(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`precision.logits` must not be narrower than `precision.compute`."""
    if spec.precision.logits == "bfloat16" and spec.precision.compute == "float32":
        message = f"bfloat16 must not be narrower than {quote_field(COMPUTE, 'float32')}."
        yield Problem("spec.precision.logits", "bfloat16", message, ("float32", f"{COMPUTE}: bfloat16"))


def warn_of_unused_matmul_precision(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`precision.matmul` has an effect on float32 matmuls of TPUs and GPUs alone."""
    matmul, is_cpu = spec.precision.matmul, spec.slices.accelerator == "cpu"
    if matmul != "default" and (is_cpu or spec.precision.compute == "bfloat16"):
        reason = "cpu computes float32 products exactly" if is_cpu else "bfloat16 products are exact"
        yield Problem("spec.precision.matmul", matmul, has_no_effect(reason, matmul), ("default",))


def warn_of_bfloat16_gradients(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Sums of gradients in bfloat16 lose addends below one part in 256."""
    if spec.precision.gradients == "bfloat16":
        message = "bfloat16 sums of gradients lose addends below 0.4 % of the sum. Their number changes the loss."
        yield Problem("spec.precision.gradients", "bfloat16", message, ("float32",))


RULES = (Rule(("precision.logits", "precision.compute"), check_logits),)
WARNINGS = (
    Rule(("precision.matmul", "precision.compute", "slices.accelerator"), warn_of_unused_matmul_precision),
    Rule(("precision.gradients",), warn_of_bfloat16_gradients),
)
