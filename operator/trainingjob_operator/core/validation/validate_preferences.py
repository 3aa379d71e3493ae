"""Rules about preference optimization: pairs of answers, the reference, and what pairs exclude."""

from collections.abc import Iterator

from trainingjob_api.formats import FORMATS, formats_with
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DEFAULT_TYPE, DPO
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_conversations import list_text_sources
from trainingjob_operator.core.validation.validate_data import SECTIONS
from trainingjob_operator.core.validation.validate_weights import SOURCE

_TYPE = f"`spec.objective.type: {DPO}`"


def check_pairs(spec: TrainingJobSpec) -> Iterator[Problem]:
    """All sources of a job with `objective.type: dpo` have pairs of answers, and only those."""
    kind = spec.objective.type if spec.objective else DEFAULT_TYPE
    for source_path, source in list_text_sources(spec):
        if kind == DPO and not source.has_pairs and source.rejected is None:
            message = (
                f"must be set with {_TYPE}. Write the field of a record that holds the preferred answer, and set "
                "`rejected`."
            )
            if "chosen" not in FORMATS[source.format].fields:
                others = " or ".join(f"`format: {name}`" for name in formats_with("chosen"))
                message += f" Records need {others}."
            yield Problem(f"{source_path}.chosen", None, message)
        elif kind != DPO and source.has_pairs:
            message = (
                f"must not be set with `spec.objective.type: {kind}`, which reads one document of a record. Remove it, "
                "or change the type."
            )
            yield Problem(f"{source_path}.chosen", source.chosen, message, (f"spec.objective.type: {DPO}",))


def check_reference(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`objective.type: dpo` requires a trained reference: `checkpoint.initializeFrom`, or a folder that is taken over.

    LoRA requires it too, and has a rule that says so.
    """
    checkpoint = spec.checkpoint
    if _prefers(spec) and not spec.lora and checkpoint.initialize_from is None and not checkpoint.takeover:
        message = (
            f"must be set with {_TYPE}: the reference is the model at the start, and would be random. Name a "
            "fine-tuned model by `uri` or `huggingFace`, or set `spec.checkpoint.takeover: true`."
        )
        yield Problem(SOURCE, None, message)


def check_packed_pairs(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Pairs cannot be packed: each answer is a sequence."""
    if _prefers(spec) and spec.data.packing:
        message = f"must not be set with {_TYPE}: each answer of a pair is one sequence. Remove it."
        yield Problem("spec.data.packing", spec.data.packing.model_dump(by_alias=True, exclude_none=True), message)


def check_excluded_losses(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Losses of single tokens are no part of the loss of pairs."""
    if not _prefers(spec):
        return
    if spec.objective and spec.objective.z_loss is not None:
        message = f"must not be set with {_TYPE}, whose loss is that of pairs. Remove it."
        yield Problem("spec.objective.zLoss", spec.objective.z_loss, message)
    if spec.model.multi_token_prediction:
        message = f"must not be set with {_TYPE}, whose loss is that of pairs. Remove it."
        value = spec.model.multi_token_prediction.model_dump(by_alias=True)
        yield Problem("spec.model.multiTokenPrediction", value, message)


def _prefers(spec: TrainingJobSpec) -> bool:
    return spec.objective is not None and spec.objective.type == DPO


RULES = (
    Rule((*SECTIONS, "objective"), check_pairs),
    Rule(("objective", "lora", "checkpoint.initializeFrom", "checkpoint.takeover"), check_reference),
    Rule(("objective", "data.packing"), check_packed_pairs),
    Rule(("objective", "model.multiTokenPrediction"), check_excluded_losses),
)
