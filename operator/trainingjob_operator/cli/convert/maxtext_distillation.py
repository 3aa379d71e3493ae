"""Distillation of MaxText: the models of student and teacher, and how the loss mixes both parts over the steps."""

from collections.abc import Sequence
from typing import Any

from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.maxtext_model import read_model
from trainingjob_operator.cli.convert.source_rows import Combined, Omit, Table, Values

STUDENT, TEACHER = "student_overrides", "teacher_overrides"
"""Keys that hold the values of one model."""
OPTIONS = {"distill_alpha": "weight", "distill_temperature": "temperature"}
"""Options of MaxText, and those of `objective.distill`; each has an end and a schedule too."""
DEFAULTS = {
    "distill_alpha": 0.5,
    "distill_temperature": 1.0,
    "distill_beta": 0.0,
    "distill_feature_loss_type": "cosine",
}
CONSTANT = "constant"
SOURCE = "objective.distill.teacher.initializeFrom"
WEIGHTS = {"huggingFace": {"path": "/data/teacher"}}
"""Path in the pods that users must replace."""
NO_TEACHER = "no `teacher_overrides` name a teacher"
FEATURES = (
    "distill_beta",
    "distill_beta_end",
    "distill_beta_schedule",
    "distill_feature_loss_type",
    "distill_layer_indices",
)
FEATURE_LOSSES = {"cosine": "cosine", "l2": "squaredError"}
INITIALIZATION = "the student starts from random parameters, or from `checkpoint.initializeFrom`"
ROWS: Table = {
    **dict.fromkeys((STUDENT, TEACHER), Combined()),
    **{f"{option}{part}": Combined() for option in OPTIONS for part in ("", "_end", "_schedule")},
    **dict.fromkeys(FEATURES, Combined()),
    "offline_data_dir": Omit("the teacher runs in the job: its logits are not read from files", off=(None, "")),
    "distill_*_map": Omit(INITIALIZATION, off=(None, {})),
    "student_params_to_update": Omit("`optimizer.trainable` has patterns of the tensors to train", off=(None, [])),
    "learn_to_init_mode": Omit(INITIALIZATION, off=(False,)),
    "lti_*": Omit(INITIALIZATION, off=(False, None, {})),
}


def take_student(values: Values) -> dict[str, Any]:
    """Return the config of the student: the common keys, overridden by those of the student."""
    return dict(values) | _take(values, STUDENT)


def read_distillation(values: Values, draft: DraftJob) -> None:
    """Set the objective of a distillation, if the config names a teacher.

    Raises:
        CommandError: no model section expresses the teacher.
    """
    teacher = _take(values, TEACHER)
    if not teacher:
        schedule_keys = {f"{option}{part}" for option in OPTIONS for part in ("", "_end", "_schedule")}
        for key in sorted(values.keys() & {*schedule_keys, *FEATURES}):
            if values[key] not in (None, [], CONSTANT, DEFAULTS.get(key)):
                draft.omit(key, values[key], NO_TEACHER)
        return
    options: dict[str, Any] = {"teacher": {"model": read_model(dict(values) | teacher)}}
    for maxtext_key, option in OPTIONS.items():
        options[option] = values.get(maxtext_key, DEFAULTS[maxtext_key])
        options |= _read_schedule(values, maxtext_key, f"{option}Schedule")
    if values.get("distill_beta"):
        options["features"] = _read_features(values, (read_model(take_student(values)), options["teacher"]["model"]))
    draft.set("objective", {"type": "distill", "distill": options})
    path = teacher.get("load_parameters_path") or teacher.get("load_full_state_path")
    source_note = f" The source has `{path}`." if path else ""
    draft.set_placeholder(SOURCE, WEIGHTS, f"the weights of the teacher in the pods.{source_note}")


def _read_schedule(values: Values, maxtext_key: str, field: str) -> dict[str, Any]:
    """Return the schedule of an option; none if it is constant."""
    schedule, end = values.get(f"{maxtext_key}_schedule", CONSTANT), values.get(f"{maxtext_key}_end")
    return {field: {"end": end, "shape": schedule}} if schedule != CONSTANT and end is not None else {}


def _read_features(values: Values, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the comparison of hidden states. MaxText counts layers from 0, and compares all of them by default."""
    indices = values.get("distill_layer_indices") or range(min(map(_count_layers, models)))
    layers = [{"student": index + 1, "teacher": index + 1} for index in indices]
    loss = FEATURE_LOSSES[values.get("distill_feature_loss_type", "cosine")]
    features = {"layers": layers, "loss": loss, "weight": values["distill_beta"]}
    return features | _read_schedule(values, "distill_beta", "weightSchedule")


def _count_layers(model: dict[str, Any]) -> int:
    """Return the number of layers of a model section, which may be that of its preset."""
    merged, _ = merge_preset(model, PRESETS)
    return int(merged["numLayers"])


def _take(values: Values, key: str) -> dict[str, Any]:
    """Return the values of one model; none if the key holds no object."""
    section = values.get(key)
    return dict(section) if isinstance(section, dict) else {}
