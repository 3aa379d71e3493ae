"""Rules about multi-token prediction."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule

PREDICTION = "spec.model.multiTokenPrediction"


def check_prediction(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`model.multiTokenPrediction` needs trained tensors and longer sequences."""
    prediction = spec.model.multi_token_prediction
    if prediction is None:
        return
    value = prediction.model_dump(by_alias=True)
    if "*" not in spec.optimizer.trainable:
        message = "must not be set with frozen tensors. The modules are trained with all tensors of the model."
        yield Problem(PREDICTION, value, message, ('spec.optimizer.trainable: ["*"]',))
    if spec.lora is not None:
        yield Problem(PREDICTION, value, "must not be set with `spec.lora`. The modules have no adapters. Remove one.")
    length = spec.training.sequence_length
    if prediction.depth >= length:
        limit = quote_field("spec.training.sequenceLength", length)
        message = f"{prediction.depth} must be less than {limit}."
        yield Problem(f"{PREDICTION}.depth", prediction.depth, message, (str(length - 1),))


RULES = (
    Rule(
        (
            "model.multiTokenPrediction",
            "optimizer.trainable",
            "lora",
            "training.sequenceLength",
        ),
        check_prediction,
    ),
)
