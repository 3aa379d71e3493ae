"""`convert` of MaxText's distillation: both models, the mix of the loss and its schedules."""

from typing import Any

from tests.cli.convert.test_convert_maxtext import convert
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.teacher import describe_teacher
from trainingjob_operator.cli.convert.commented_yaml import as_manifest

DISTILLATION: dict[str, Any] = {
    "model_name": "llama3.1-8b",
    "student_overrides": {"base_num_decoder_layers": 16},
    "teacher_overrides": {"model_name": "llama3.1-70b", "load_parameters_path": "gs://bucket/teacher/items"},
    "distill_alpha": 0.7,
    "distill_alpha_end": 0.1,
    "distill_alpha_schedule": "cosine",
    "distill_temperature": 2.0,
    "distill_temperature_end": 1.0,
}


def test_a_distillation_is_converted() -> None:
    draft = convert(DISTILLATION)
    spec = parse_spec(as_manifest(draft)["spec"]).spec

    assert spec
    assert spec.model.num_layers == 16
    teacher = describe_teacher(spec)
    assert teacher
    assert (teacher.model.preset, teacher.model.num_layers) == ("llama3.1-70b", 80)
    assert spec.objective
    assert spec.objective.distill
    options = spec.objective.distill
    assert (options.weight, options.temperature) == (0.7, 2.0)
    assert options.weight_schedule
    assert (options.weight_schedule.end, options.weight_schedule.shape) == (0.1, "cosine")
    assert options.temperature_schedule is None, "its schedule is constant"
    assert "gs://bucket/teacher/items" in draft.fill_in["objective.distill.teacher.initializeFrom"]
    assert not [one.key for one in draft.omissions if "distill" in one.key or "overrides" in one.key]


def test_a_teacher_may_have_no_path_and_fine_tuning_its_records() -> None:
    draft = convert(
        {"model_name": "llama2-7b", "use_sft": True, "teacher_overrides": {"model_name": "llama2-70b"}, "steps": 9}
    )

    assert draft.get("objective.type") == "distill"
    assert draft.get("data.train")[0]["messages"] == "messages"
    assert "The source has" not in draft.fill_in["objective.distill.teacher.initializeFrom"]


def test_all_layers_or_those_that_are_listed_are_compared() -> None:
    features = {"distill_beta": 0.5, "distill_beta_end": 0.0, "distill_beta_schedule": "linear"}
    same_width = {"teacher_overrides": {"model_name": "llama3.1-8b"}}
    every, some = (
        convert(DISTILLATION | features | same_width | one).get("objective.distill.features")
        for one in ({}, {"distill_layer_indices": [0, 7], "distill_feature_loss_type": "l2"})
    )

    assert every["layers"] == [{"student": number, "teacher": number} for number in range(1, 17)]
    assert every["loss"] == "cosine"
    assert some["layers"] == [{"student": 1, "teacher": 1}, {"student": 8, "teacher": 8}]
    assert (some["loss"], some["weight"]) == ("squaredError", 0.5)
    assert some["weightSchedule"] == {"end": 0.0, "shape": "linear"}


def test_options_without_a_teacher_and_features_are_left_out() -> None:
    draft = convert(
        {
            "model_name": "llama2-7b",
            "teacher_overrides": {},
            "distill_alpha": 0.9,
            "distill_temperature": 1.0,
            "distill_alpha_schedule": "constant",
            "distill_beta": 0.5,
            "distill_feature_loss_type": "cosine",
            "offline_data_dir": "gs://bucket/logits",
            "learn_to_init_mode": True,
        }
    )

    assert draft.get("objective") is None
    assert {one.key for one in draft.omissions} == {
        "distill_alpha",
        "distill_beta",
        "offline_data_dir",
        "learn_to_init_mode",
    }
