"""Rules about distillation: the model of the teacher, its source, and what excludes a teacher.

The rules about models and sources of weights also hold for the teacher. They check a job that has it as its model.
"""

from collections.abc import Callable, Iterable, Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.checkpoint import Checkpoint
from trainingjob_api.spec.distillation import Distill, Features, Teacher
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DISTILL
from trainingjob_api.teacher import TEACHER, describe_source, move_to_teacher
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation import validate_experts, validate_layers, validate_model
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_storage import MOUNTS
from trainingjob_operator.core.validation.validate_weights import (
    check_initialize_from,
    check_source_folder,
    check_source_folders,
)

type Check = Callable[[TrainingJobSpec], Iterable[Problem]]

SECTION = "spec.objective.distill"
_TYPE = f"`spec.objective.type: {DISTILL}`"
_MODEL_RULES = (*validate_model.RULES, *validate_layers.RULES, *validate_experts.RULES)


def check_distill(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`objective.type: distill` requires `objective.distill`, which names the teacher."""
    if spec.objective and spec.objective.type == DISTILL and spec.objective.distill is None:
        message = f"must be set with {_TYPE}. Write the `teacher`: its `model`, and `initializeFrom`."
        yield Problem(SECTION, None, message)


def check_alternatives(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A distillation must have either a teacher, or its stored probabilities."""
    distill = _find_distill(spec)
    if distill and (distill.teacher is None) == (distill.probabilities is None):
        found = "both. Remove one" if distill.teacher else "none. Add one"
        yield Problem(SECTION, None, f"must have exactly one of `teacher` and `probabilities`, but has {found}.")


def check_stored_probabilities(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Stored probabilities are those of temperature 1, and hold no hidden states."""
    distill = _find_distill(spec)
    if distill is None or distill.probabilities is None:
        return
    stored, size = distill.probabilities.per_token, spec.model.vocab_size
    if stored > size:
        message = f"{stored} must be at most {quote_field('spec.model.vocabSize', size)}."
        yield Problem(f"{SECTION}.probabilities.perToken", stored, message, (str(size),))
    with_them = f"with `{SECTION}.probabilities`"
    if distill.temperature != 1:
        message = f"{distill.temperature:g} must be 1 {with_them}, which are those of temperature 1."
        yield Problem(f"{SECTION}.temperature", distill.temperature, message, ("1",))
    if distill.temperature_schedule:
        message = f"must not be set {with_them}, which are those of temperature 1. Remove it."
        yield Problem(f"{SECTION}.temperatureSchedule", None, message)
    if distill.features:
        message = f"must not be set {with_them}, which hold no hidden states. Remove it, or write the `teacher`."
        yield Problem(f"{SECTION}.features", None, message)


def check_stored_folder(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Stored probabilities must be in a bucket or on a volume, outside the job's own checkpoint folder."""
    stored = spec.objective.probabilities if spec.objective else None
    if stored:
        yield from check_source_folder(spec, f"{SECTION}.probabilities.uri", stored.uri)


def check_vocabularies(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The teacher must have the vocabulary of the student: their probabilities are compared token by token."""
    teacher, vocab_size = _find_teacher(spec), spec.model.vocab_size
    if teacher and teacher.model.vocab_size != vocab_size:
        size = teacher.model.vocab_size
        message = (
            f"{size} must equal {quote_field('spec.model.vocabSize', vocab_size)}. Choose a teacher with the tokenizer "
            "of the student, and pad the smaller vocabulary if their ids agree."
        )
        yield Problem(f"{TEACHER}.model.vocabSize", size, message, (f"spec.model.vocabSize: {size}",))


def check_teacher(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The dimensions of the teacher must fit each other, as those of the student."""
    if teacher := _find_teacher(spec):
        described = TrainingJobSpec.model_construct(model=teacher.model, training=spec.training)
        yield from _check_teacher(described, (rule.check for rule in _MODEL_RULES))


def check_teacher_source(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The parameters of the teacher must have one fixed source, in a bucket or on a volume."""
    if teacher := _find_teacher(spec):
        checkpoint = Checkpoint(uri=spec.checkpoint.uri, initialize_from=describe_source(teacher))
        described = TrainingJobSpec.model_construct(checkpoint=checkpoint, runtime=spec.runtime)
        yield from _check_teacher(described, (check_initialize_from, _check_step, check_source_folders))


def _check_step(teacher: TrainingJobSpec) -> Iterator[Problem]:
    source = teacher.checkpoint.initialize_from
    if source and source.uri is not None and source.step is None:
        message = (
            "must be set together with `uri`. Each start reads the teacher again, and the newest step may change. "
            "Write the step of a checkpoint in the folder."
        )
        yield Problem("spec.checkpoint.initializeFrom.step", None, message)


def check_teacher_options(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A teacher has no options of training: it drops nothing, and predicts the next token alone."""
    teacher = _find_teacher(spec)
    if teacher is None:
        return
    dropout, prediction = teacher.model.dropout, teacher.model.multi_token_prediction
    for field, value in (("residual", dropout.residual), ("embedding", dropout.embedding)):
        if value:
            message = f"{value:g} must be 0. The teacher is not trained, and nothing is dropped."
            yield Problem(f"{TEACHER}.model.dropout.{field}", value, message, ("0",))
    if prediction:
        message = "must not be set. The teacher predicts the next token alone. Remove it."
        yield Problem(f"{TEACHER}.model.multiTokenPrediction", prediction.model_dump(by_alias=True), message)


def check_features(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Layers whose outputs are compared must exist, once in the student, and have the same width in both models."""
    distill = _find_distill(spec)
    if distill is None or distill.features is None or distill.teacher is None:
        return
    path, student, teacher = f"{SECTION}.features.layers", spec.model, distill.teacher.model
    if student.embed_dim != teacher.embed_dim:
        same = quote_field("spec.model.embedDim", student.embed_dim)
        message = (
            f"{teacher.embed_dim} must equal {same} with `{SECTION}.features`, which compares hidden states. Choose "
            "models of the same width, or remove `features`."
        )
        yield Problem(
            f"{TEACHER}.model.embedDim",
            teacher.embed_dim,
            message,
            (f"spec.model.embedDim: {teacher.embed_dim}",),
        )
    seen = set()
    for number, pair in enumerate(distill.features.layers):
        for field, layer, limit, of_model in (
            ("student", pair.student, student.num_layers, "spec.model.numLayers"),
            ("teacher", pair.teacher, teacher.num_layers, f"{TEACHER}.model.numLayers"),
        ):
            if layer > limit:
                message = f"{layer} must be at most {quote_field(of_model, limit)}."
                yield Problem(f"{path}[{number}].{field}", layer, message, (str(limit),))
        if pair.student in seen:
            message = (
                f"{pair.student} must not occur twice. A layer imitates one layer of the teacher. Remove the pair."
            )
            yield Problem(f"{path}[{number}].student", pair.student, message)
        seen.add(pair.student)


def check_excluded_by_teacher(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Distillation excludes modules that predict further tokens."""
    prediction = spec.model.multi_token_prediction
    if prediction and _find_distill(spec):
        message = f"must not be set with {_TYPE}. The teacher has no probabilities of further tokens. Remove it."
        yield Problem("spec.model.multiTokenPrediction", prediction.model_dump(by_alias=True), message)


def warn_of_unused_teacher(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A weight of 0 in all steps leaves the teacher without effect on the loss."""
    distill = _find_distill(spec)
    schedule = distill.weight_schedule if distill else None
    if distill and distill.weight == 0 and (schedule is None or schedule.end == 0):
        costs = "which runs" if distill.teacher else "whose probabilities are read"
        message = has_no_effect(f"the loss has no part of the teacher, {costs} all the same", "0")
        yield Problem(f"{SECTION}.weight", 0, message, ("0.5",))


def warn_of_unused_features(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A weight of 0 in all steps leaves the hidden states without effect on the loss."""
    distill = _find_distill(spec)
    features = distill.features if distill else None
    if features and features.weight == 0 and (features.weight_schedule is None or features.weight_schedule.end == 0):
        message = has_no_effect("the loss has no part of the hidden states, which are compared all the same", "0")
        yield Problem(f"{SECTION}.features.weight", 0, message, ("1",))


def warn_of_constant_schedules(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A schedule has no effect if it ends where it starts."""
    distill = _find_distill(spec)
    if distill is None:
        return
    features = distill.features or Features.model_construct(weight=0.0)
    for field, start, schedule in (
        ("weight", distill.weight, distill.weight_schedule),
        ("temperature", distill.temperature, distill.temperature_schedule),
        ("features.weight", features.weight, features.weight_schedule),
    ):
        end = schedule.end if schedule else None
        if start == end:
            start_text = quote_field(f"{SECTION}.{field}", f"{start:g}")
            yield Problem(f"{SECTION}.{field}Schedule.end", end, has_no_effect(f"{start_text} is equal", f"{end:g}"))


def _find_distill(spec: TrainingJobSpec) -> Distill | None:  # None: the job has another objective
    return spec.objective.distill if spec.objective and spec.objective.type == DISTILL else None


def _find_teacher(spec: TrainingJobSpec) -> Teacher | None:
    return spec.objective.teacher if spec.objective else None


def _check_teacher(described: TrainingJobSpec, checks: Iterable[Check]) -> Iterator[Problem]:
    """Yield the problems of the fields that describe the teacher."""
    found = map(move_to_teacher, (problem for check in checks for problem in check(described)))
    yield from (problem for problem in found if problem.path.startswith(TEACHER))


RULES = (
    Rule(("objective",), check_distill),
    Rule(("objective",), check_alternatives),
    Rule(("objective", "model.vocabSize"), check_stored_probabilities),
    Rule(("objective", "checkpoint.uri", MOUNTS), check_stored_folder),
    Rule(("objective", "model.vocabSize"), check_vocabularies),
    Rule(
        ("objective", *sorted({path for rule in _MODEL_RULES for path in rule.reads if not path.startswith("model")})),
        check_teacher,
    ),
    Rule(("objective", "checkpoint.uri", MOUNTS), check_teacher_source),
    Rule(("objective",), check_teacher_options),
    Rule(("objective", "model.embedDim", "model.numLayers"), check_features),
    Rule(("objective", "model.multiTokenPrediction"), check_excluded_by_teacher),
)
WARNINGS = (
    Rule(("objective",), warn_of_unused_teacher),
    Rule(("objective",), warn_of_unused_features),
    Rule(("objective",), warn_of_constant_schedules),
)
