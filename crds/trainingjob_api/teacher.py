"""The teacher of a distillation, described as a job that trains nothing: what holds for models holds for it."""

from dataclasses import replace

from trainingjob_api.problem import Problem
from trainingjob_api.spec.checkpoint import HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.distillation import Teacher
from trainingjob_api.spec.job import TrainingJobSpec

TEACHER = "spec.objective.distill.teacher"
FIELDS = {
    "spec.model": f"{TEACHER}.model",
    "spec.checkpoint.initializeFrom": f"{TEACHER}.initializeFrom",
}
"""The fields of a job, and those of the teacher that stand in their place."""


SMALL_VOCABULARY = 1 << 16
"""Largest vocabulary whose ids are stored in 2 bytes."""


def count_stored_bytes(per_token: int, vocab_size: int) -> int:
    """Return the bytes of a token's stored probabilities: ids, probabilities in float16, and an entropy in float32."""
    of_id = 2 if vocab_size <= SMALL_VOCABULARY else 4
    return per_token * (of_id + 2) + 4


def count_batch_bytes(per_token: int) -> int:
    """Return the bytes of a token's stored probabilities in a batch, whose ids are int32."""
    return count_stored_bytes(per_token, SMALL_VOCABULARY + 1)


def describe_teacher(spec: TrainingJobSpec) -> TrainingJobSpec | None:  # None: the job has no teacher
    """Return the spec of a job that has the teacher as its model, with all tensors frozen.

    The parameters are stored in the compute format: nothing is ever added to them. `describe_source` has their source.
    """
    teacher = spec.objective.teacher if spec.objective else None
    if teacher is None:
        return None
    return spec.model_copy(
        update={
            "model": teacher.model,
            "objective": None,
            "lora": None,
            "optimizer": spec.optimizer.model_copy(update={"trainable": ()}),
            "precision": spec.precision.model_copy(update={"params": spec.precision.compute, "quantization": None}),
        }
    )


def describe_source(teacher: Teacher) -> InitializeFrom:
    """Return the source of a teacher as that of initial parameters."""
    source = teacher.initialize_from
    weights = HuggingFaceSource(path=source.hugging_face.path) if source.hugging_face else None
    return InitializeFrom(uri=source.uri, step=source.step, hugging_face=weights)


def name_teacher_fields(text: str) -> str:
    """Return a text about the job of `describe_teacher` with the fields of the teacher."""
    for field, of_teacher in FIELDS.items():
        text = text.replace(field, of_teacher)
    return text


def move_to_teacher(problem: Problem) -> Problem:
    """Return a problem of the job of `describe_teacher` as one of the teacher."""
    nearest = tuple(map(name_teacher_fields, problem.nearest))
    return replace(
        problem,
        path=name_teacher_fields(problem.path),
        message=name_teacher_fields(problem.message),
        nearest=nearest,
    )
