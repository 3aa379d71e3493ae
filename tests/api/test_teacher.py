"""The teacher of a distillation: the job that describes it, and the fields that its problems name."""

from typing import Any

from trainingjob_api.parse.parser import Parsed, parse_spec
from trainingjob_api.problem import Problem
from trainingjob_api.sample import SAMPLE
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_api.spec.distillation import Distill, Teacher
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import Objective
from trainingjob_api.teacher import (
    count_batch_bytes,
    count_stored_bytes,
    describe_source,
    describe_teacher,
    move_to_teacher,
)

MODEL = {"vocabSize": 257, "embedDim": 64, "mlpDim": 96, "numLayers": 2, "numHeads": 4}
STEP = {"uri": "/shared/teacher", "step": 7}


def parse(teacher: dict[str, Any], **distill: Any) -> Parsed:
    objective = {"type": "distill", "distill": {"teacher": teacher, **distill}}
    sections = {name: section for name, section in SAMPLE.items() if name != "program"}
    return parse_spec(sections | {"objective": objective})


def job_with(teacher: dict[str, Any]) -> TrainingJobSpec:
    spec = parse(teacher).spec
    assert spec
    return spec


def source_of(spec: TrainingJobSpec) -> InitializeFrom:
    teacher = spec.objective.teacher if spec.objective else None
    assert teacher
    return describe_source(teacher)


def test_the_teacher_is_a_job_that_trains_nothing() -> None:
    spec = job_with({"model": MODEL, "initializeFrom": STEP})
    spec = spec.model_copy(update={"precision": spec.precision.model_copy(update={"compute": "bfloat16"})})

    teacher = describe_teacher(spec)

    assert teacher
    assert teacher.model.embed_dim == 64
    assert (teacher.objective, teacher.lora, teacher.optimizer.trainable) == (None, None, ())
    assert (teacher.precision.params, teacher.precision.quantization) == ("bfloat16", None)
    source = source_of(spec)
    assert (source.uri, source.step, source.hugging_face) == ("/shared/teacher", 7, None)


def test_a_teacher_may_be_published() -> None:
    spec = job_with({"model": {"preset": "llama3.1-8b"}, "initializeFrom": {"huggingFace": {"path": "/models/8b"}}})

    teacher = describe_teacher(spec)

    assert teacher
    assert (teacher.model.preset, teacher.model.embed_dim) == ("llama3.1-8b", 4096)
    weights = source_of(spec).hugging_face
    assert weights
    assert weights.path == "/models/8b"


def test_other_objectives_have_no_teacher() -> None:
    spec = job_with({"model": MODEL, "initializeFrom": STEP})
    distill = spec.objective.distill if spec.objective else None

    assert describe_teacher(spec.model_copy(update={"objective": None})) is None
    assert describe_teacher(spec.model_copy(update={"objective": Objective(type="sft", distill=distill)})) is None
    assert describe_teacher(spec.model_copy(update={"objective": Objective(type="distill")})) is None


def test_stored_probabilities_are_no_teacher() -> None:
    objective = {"type": "distill", "distill": {"probabilities": {"uri": "/shared/taught"}}}
    sections = {name: section for name, section in SAMPLE.items() if name != "program"}

    spec = parse_spec(sections | {"objective": objective}).spec

    assert spec
    assert spec.objective
    assert describe_teacher(spec) is None
    assert spec.objective.probabilities
    assert spec.objective.probabilities.per_token == 12
    assert Objective(type="sft", distill=spec.objective.distill).probabilities is None
    assert "teacher" not in spec.objective.model_dump()["distill"]


def test_bytes_of_stored_probabilities() -> None:
    assert [count_stored_bytes(12, size) for size in (1 << 16, (1 << 16) + 1)] == [52, 76]
    assert count_batch_bytes(12) == 76


def test_an_unknown_preset_of_the_teacher_is_a_problem_of_the_teacher() -> None:
    found = parse({"model": {"preset": "llama3.1-9b"}, "initializeFrom": STEP})

    paths = {problem.path: problem.nearest for problem in found.problems}
    assert "llama3.1-8b" in paths["spec.objective.distill.teacher.model.preset"]
    assert found.spec
    assert not found.is_as_written(("objective.distill.teacher.model",))
    assert found.is_as_written(("model", "objective.distill.weight"))


def test_both_models_may_name_unknown_presets() -> None:
    teacher = {"model": {"preset": "a"}, "initializeFrom": STEP}
    objective = {"type": "distill", "distill": {"teacher": teacher}}

    found = parse_spec(SAMPLE | {"model": {"preset": "b"}, "objective": objective})

    paths = {problem.path for problem in found.problems}
    assert {"spec.model.preset", "spec.objective.distill.teacher.model.preset"} <= paths


def test_problems_of_the_job_become_those_of_the_teacher() -> None:
    problem = Problem("spec.model.numHeads", 3, "must divide `spec.model.embedDim` (64).", ("spec.model.numHeads: 4",))

    at = "spec.objective.distill.teacher.model"
    assert move_to_teacher(problem) == Problem(
        f"{at}.numHeads", 3, f"must divide `{at}.embedDim` (64).", (f"{at}.numHeads: 4",)
    )


def test_older_agents_read_no_distillation() -> None:
    spec = job_with({"model": MODEL, "initializeFrom": STEP})
    assert spec.objective
    assert spec.objective.distill

    assert "distill" not in Objective().model_dump()
    written = Objective(type="distill", distill=spec.objective.distill).model_dump(by_alias=True)["distill"]
    assert (written["weight"], written["temperature"], written["teacher"]["initializeFrom"]["step"]) == (0.5, 1.0, 7)
    assert Distill.model_validate(written).teacher == Teacher.model_validate(written["teacher"])
