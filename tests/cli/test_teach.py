"""`trainingjob teach`: the request for the trainer, the answers, and what is refused before it starts."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_prepare import make_spec, write_job
from tests.cli.test_weights import call
from trainingjob_api.prepare_exchange import TeachAnswer
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli import teach_folder
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.teach_folder import TeachOptions, make_teach_request

MODEL = {"vocabSize": 257, "embedDim": 64, "mlpDim": 96, "numLayers": 2, "numHeads": 4}
TEACHER = {"model": MODEL, "initializeFrom": {"uri": "/shared/teacher", "step": 7}}
OBJECTIVE: dict[str, Any] = {"type": "distill", "distill": {"teacher": TEACHER}}
SAME: dict[str, Any] = {"objective": OBJECTIVE, "model": MODEL, "tokenizer": {"type": "byte"}}


def answer_with(monkeypatch: pytest.MonkeyPatch, *answers: TeachAnswer) -> None:
    """Put a program in the trainer's place that reads a request and prints these lines."""
    lines = "\n".join(one.model_dump_json() for one in answers)
    monkeypatch.setattr(teach_folder, "PROGRAM", ("-c", f"import sys; sys.stdin.read(); print({lines!r})"))


def test_what_was_stored_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half, done = (TeachAnswer(done_sequences=number, total_sequences=9) for number in (4, 9))
    answer_with(monkeypatch, TeachAnswer(), half, done.model_copy(update={"is_complete": True}))

    result = call("teach", str(write_job(tmp_path, **SAME)), "--output", str(tmp_path / "taught"))

    assert result.code == 0
    assert result.out.startswith("9 sequences · 12 probabilities a token · 52 B a token · ")
    assert f"stored in {tmp_path}/taught, for `spec.objective.distill.probabilities.uri`" in result.err


@pytest.mark.parametrize(
    ("answers", "message"),
    [((TeachAnswer(error="no weights"),), "no weights"), ((TeachAnswer(),), "ended without an answer")],
)
def test_an_error_of_the_trainer_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[TeachAnswer, ...], message: str
) -> None:
    answer_with(monkeypatch, *answers)

    result = call("teach", str(write_job(tmp_path, **SAME)), "--output", str(tmp_path))

    assert result.code == 2
    assert message in result.err


def test_paths_of_volumes_are_those_of_this_machine(tmp_path: Path) -> None:
    spec = TrainingJobSpec.model_validate(make_spec(**SAME))

    request = make_teach_request(spec, TeachOptions(str(tmp_path), 8, "2/3", [f"shared={tmp_path}"]))

    assert request.spec.objective
    assert request.spec.objective.teacher
    assert request.spec.objective.teacher.initialize_from.uri == f"{tmp_path}/teacher"
    assert (request.per_token, request.rank, request.count) == (8, 1, 3)
    assert request.paths["spec.data.train[0]"] == "/shared/web"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no teacher": ({"objective": None}, {}, "spec.objective.distill.teacher: must be set. `teach` runs this model."),
    "none of a token": ({}, {"per_token": 0}, "--per-token: 0 must be from 1 to 255."),
    "too many": ({}, {"per_token": 256}, "--per-token: 256 must be from 1 to 255."),
    "no share": ({}, {"share": "half"}, "--share: half must be a number and the number of processes"),
    "an empty share": ({}, {"share": "1/"}, "--share: 1/ must be a number and the number of processes"),
    "a share out of range": ({}, {"share": "0/4"}, "--share: 0/4 must be from 1/4 to 4/4."),
}


@pytest.mark.parametrize(("changes", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_is_refused(changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    sections = {name: one for name, one in (SAME | changes).items() if one is not None}
    spec = TrainingJobSpec.model_validate(make_spec(**sections))

    with pytest.raises(UsageError) as caught:
        make_teach_request(spec, TeachOptions("/tmp", **{"per_token": 12} | options))

    assert message in str(caught.value)
