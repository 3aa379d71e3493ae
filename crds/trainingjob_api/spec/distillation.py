"""Options of distillation: the teacher, and how much of the loss it makes."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import StoreUri, Strict
from trainingjob_api.meta import NO_UNIT, Example, NoStoredDefaults, Unit, cel_rule
from trainingjob_api.spec.model import Model


class TeacherWeights(Strict):
    """Published weights of a teacher in the format of Hugging Face."""

    path: Annotated[StoreUri, Example("/models/Llama-3.1-8B")] = Field(
        description="Folder on a volume of `runtime.volumes` or in a bucket, with `config.json` and "
        "`model.safetensors` or the files of an index. It is only read."
    )


class TeacherSource(Strict):
    """Parameters of a teacher, which each start of the job reads again."""

    uri: Annotated[StoreUri | None, Example("/shared/teacher")] = Field(
        default=None,
        description="Folder that was `checkpoint.uri` of the job that trained the teacher. It is only read.",
    )
    step: Annotated[Annotated[int, Field(ge=1, le=100_000_000)] | None, Unit("optimizer steps"), Example(5000)] = Field(
        default=None,
        description="Checkpoint step to load, which `uri` requires: the newest step could change between two starts.",
    )
    hugging_face: TeacherWeights | None = Field(
        default=None,
        description="Published weights instead of another job's checkpoint; `trainingjob import` prints their `model` "
        "section.",
    )

    cel_rules = (
        cel_rule("has(self.uri) != has(self.huggingFace)", "must have exactly one of `uri` and `huggingFace`."),
        cel_rule("has(self.step) == has(self.uri)", "must be set together with `uri`.", "step"),
    )


class Teacher(Strict):
    """A trained model with the vocabulary of the student. Training does not change it."""

    model: Annotated[Model, NoStoredDefaults()] = Field(
        description="Dimensions of the teacher, or their preset. Its `vocabSize` must equal `spec.model.vocabSize`."
    )
    initialize_from: TeacherSource = Field(description="Source of the parameters. It must not change during the job.")


Shape = Annotated[
    Literal["linear", "cosine"],
    Example("cosine"),
    Field(description="Shape of the change: a line, or half a cosine, which is slow at both ends."),
]


class WeightSchedule(Strict):
    """Weight of the teacher over the steps, from `weight` at the first to `end` at the last."""

    end: Annotated[float, Field(ge=0, le=1), NO_UNIT, Example(0.1)] = Field(description="Weight at the last step.")
    shape: Shape = "linear"


class TemperatureSchedule(Strict):
    """Temperature over the steps, from `temperature` at the first to `end` at the last."""

    end: Annotated[float, Field(gt=0, le=100), NO_UNIT, Example(1.0)] = Field(
        description="Temperature at the last step."
    )
    shape: Shape = "linear"


class LayerPair(Strict):
    """Layer of the student, and the layer of the teacher that it imitates."""

    student: Annotated[int, Field(ge=1, le=1000), NO_UNIT, Example(2)] = Field(
        description="Layer of `spec.model`, counted from 1."
    )
    teacher: Annotated[int, Field(ge=1, le=1000), NO_UNIT, Example(4)] = Field(
        description="Layer of the teacher's `model`, counted from 1."
    )


class FeatureWeightSchedule(Strict):
    """Weight of the hidden states over the steps, from `weight` at the first to `end` at the last."""

    end: Annotated[float, Field(ge=0, le=1000), NO_UNIT, Example(0.0)] = Field(description="Weight at the last step.")
    shape: Shape = "linear"


class Features(Strict):
    """Loss of hidden states (Romero et al., arXiv 1412.6550): layers of the student imitate layers of the teacher."""

    layers: Annotated[tuple[LayerPair, ...], Field(min_length=1, max_length=256)] = Field(
        description="Pairs of layers whose outputs are compared. Both models must have the same `embedDim`."
    )
    loss: Annotated[Literal["cosine", "squaredError"], Example("squaredError")] = Field(
        default="cosine",
        description="Distance of two hidden states: 1 minus the cosine of their angle, or the mean squared difference.",
    )
    weight: Annotated[float, Field(ge=0, le=1000), NO_UNIT, Example(0.1)] = Field(
        default=1.0, description="Factor of the distance, averaged over `layers`, in the loss of a token."
    )
    weight_schedule: FeatureWeightSchedule | None = Field(
        default=None, description="Change of `weight` over `training.steps`. Unset: it is constant."
    )


DEFAULT_PER_TOKEN = 12
"""Probabilities of each token that are stored by default."""
MAX_PER_TOKEN = 255


class StoredProbabilities(Strict):
    """Samples of a teacher's probabilities, which `trainingjob teach` has written."""

    uri: Annotated[StoreUri, Example("/shared/taught")] = Field(
        description="Folder on a volume of `runtime.volumes` or in a bucket. It is only read."
    )
    per_token: Annotated[int, Field(ge=1, le=MAX_PER_TOKEN), NO_UNIT, Example(12)] = Field(
        default=DEFAULT_PER_TOKEN,
        description="Probabilities of each token, as `trainingjob teach` has stored them.",
    )


class Distill(Strict):
    """Distillation (Hinton et al., arXiv 1503.02531): the model also learns the probabilities of a teacher."""

    teacher: Teacher | None = Field(
        default=None,
        description="Model that the student imitates: its dimensions and its parameters. It runs in each step.",
        exclude_if=lambda teacher: teacher is None,
    )
    probabilities: StoredProbabilities | None = Field(
        default=None,
        description="Stored probabilities in place of the teacher. They need `temperature: 1`.",
        exclude_if=lambda stored: stored is None,  # an agent before 0.1 refuses a field that it does not know
    )
    weight: Annotated[float, Field(ge=0, le=1), NO_UNIT, Example(0.5)] = Field(
        default=0.5,
        description="Share of the teacher in the loss. The cross-entropy of the targets has the rest.",
    )
    temperature: Annotated[float, Field(gt=0, le=100), NO_UNIT, Example(2.0)] = Field(
        default=1.0,
        description="Divisor of the logits of both models in the teacher's part of the loss, which is multiplied by "
        "its square.",
    )
    weight_schedule: WeightSchedule | None = Field(
        default=None, description="Change of `weight` over `training.steps`. Unset: it is constant."
    )
    temperature_schedule: TemperatureSchedule | None = Field(
        default=None, description="Change of `temperature` over `training.steps`. Unset: it is constant."
    )
    features: Features | None = Field(
        default=None,
        description="Comparison of hidden states, added to the loss. Unset: only probabilities are compared.",
    )

    cel_rules = (
        cel_rule(
            "has(self.teacher) != has(self.probabilities)", "must have exactly one of `teacher` and `probabilities`."
        ),
        cel_rule(
            "!has(self.probabilities) || !has(self.features)",
            "must not be set with `probabilities`, which hold no hidden states.",
            "features",
        ),
    )
