"""`trainingjob prepare`: the request for the trainer, the report of the text, and what cannot be prepared."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_weights import call, trainingjob
from tests.support.builders import spec_manifest
from trainingjob_api.data_report import DataReport, PreparationProgress, SourceReport
from trainingjob_api.prepare_exchange import PrepareAnswer, PrepareRequest
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli import prepare_folder
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.local.local_spec import localize_spec
from trainingjob_operator.cli.prepare_folder import PrepareOptions, make_request

SOURCE = SourceReport(name="web", files=2, documents=5, characters=900, tokens=300, rows=18, epochs=0.5)
REPORT = DataReport(tokens=300, rows=18, epochs=0.5, sources=(SOURCE,), warnings=("short",))
HALF = PreparationProgress(done_bytes=5, total_bytes=10, tokens=150)
SHARED = {"name": "shared", "mountPath": "/shared", "claimName": "shared"}


def make_spec(**sections: Any) -> dict[str, Any]:
    held_out = {"name": "held-out", "path": "/shared/held", "everySteps": 5}
    data = {"train": [{"name": "web", "path": "/shared/web"}, {"name": "image", "path": "/opt/text"}]}
    other = {"data": data, "evaluation": [held_out], "runtime": {"image": "trainer:1", "volumes": [SHARED]}}
    tokenizer = {"tokenizer": {"type": "tokenizers", "path": "/shared/tokenizer.json"}}
    return spec_manifest(checkpoint={"uri": "/shared/run"}) | other | tokenizer | sections


def write_job(folder: Path, **sections: Any) -> Path:
    path = folder / "job.yaml"
    job = {"apiVersion": "trainingjob.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    path.write_text(yaml.safe_dump(job | {"spec": make_spec(**sections)}))
    return path


def answer_with(monkeypatch: pytest.MonkeyPatch, *answers: PrepareAnswer) -> None:
    """Put a program in the trainer's place that reads a request and prints these lines."""
    lines = "\n".join(one.model_dump_json() for one in answers)
    monkeypatch.setattr(prepare_folder, "PROGRAM", ("-c", f"import sys; sys.stdin.read(); print({lines!r})"))


def test_what_was_read_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, PrepareAnswer(progress=HALF), PrepareAnswer(report=REPORT))

    result = call("prepare", str(write_job(tmp_path)), "--output", str(tmp_path))

    assert result.code == 0
    assert result.out.splitlines() == [
        "text 300 tokens   18 rows   0.50 epochs",
        "  web  2 files  5 documents  900 characters  300 tokens  18 rows  0.50 epochs",
        "  warning: short",
    ]
    assert f"tokens in {tmp_path}/data, for jobs whose `spec.checkpoint.uri` is this folder\n" in result.err


def request_of(options: PrepareOptions, **sections: Any) -> PrepareRequest:
    return make_request(TrainingJobSpec.model_validate(make_spec(**sections)), options)


def test_paths_of_volumes_are_those_of_this_machine(tmp_path: Path) -> None:
    request = request_of(PrepareOptions(None, [f"shared={tmp_path}"]))

    assert [source.path for source in request.spec.data.train] == [f"{tmp_path}/web", "/opt/text"]
    assert request.spec.tokenizer.path == f"{tmp_path}/tokenizer.json"
    assert request.output == f"{tmp_path}/run"
    assert request.paths == {"spec.data.train[0]": "/shared/web", "spec.evaluation[0]": "/shared/held"}


def test_a_pod_needs_no_folders(tmp_path: Path) -> None:
    request = request_of(PrepareOptions(None), checkpoint={"uri": str(tmp_path / "new")})

    assert (request.output, request.paths) == (str(tmp_path / "new"), {})


def test_the_output_may_be_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert request_of(PrepareOptions("tokens")).output == f"{tmp_path}/tokens"


def test_the_output_may_be_a_bucket() -> None:
    assert request_of(PrepareOptions("gs://runs/run")).output == "gs://runs/run"
    assert request_of(PrepareOptions(None), checkpoint={"uri": "s3://runs/run"}).output == "s3://runs/run"


WRONG: dict[str, tuple[PrepareOptions, str]] = {
    "a folder of the pods": (PrepareOptions(None), "spec.checkpoint.uri: /shared/run is not on this machine."),
    "no such volume": (PrepareOptions(None, ["other=/tmp"]), "the job has no volume `other`. It has: `shared`."),
    "no such folder": (PrepareOptions(None, ["shared=/nowhere"]), "--volume shared=/nowhere: /nowhere must be"),
}


@pytest.mark.parametrize(("options", "want"), WRONG.values(), ids=WRONG)
def test_what_the_command_cannot_use_is_named(options: PrepareOptions, want: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_of(options)

    assert want in str(caught.value)


ENDS: dict[str, tuple[list[PrepareAnswer], str]] = {
    "an error": (
        [PrepareAnswer(error="spec.data.train[0].path: /shared/web is not there on this host.")],
        (
            "spec.data.train[0].path: /shared/web is not there on this host. On this machine, --volume shared=FOLDER "
            "names the folder of a volume."
        ),
    ),
    "no report": ([PrepareAnswer(progress=HALF)], "the trainer ended without an answer."),
}


@pytest.mark.parametrize(("answers", "want"), ENDS.values(), ids=ENDS)
def test_a_preparation_that_ends_early_is_no_result(
    answers: list[PrepareAnswer], want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, *answers)

    result = call("prepare", str(write_job(tmp_path)), "--output", str(tmp_path))

    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(f"Error: {want}\n")


def test_an_error_with_folders_has_no_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, PrepareAnswer(error=f"{tmp_path}/web is not there on this host."))

    result = call("prepare", str(write_job(tmp_path)), "--volume", f"shared={tmp_path}")

    assert result.err.endswith("is not there on this host.\n")


PHASE = {"train": [{"name": "web", "path": "/shared/web"}], "prepare": {"parallelism": 4, "resources": {"cpu": "8"}}}


def test_the_plan_has_the_preparation_phase(tmp_path: Path) -> None:
    alone = PHASE | {"prepare": {}}

    assert (
        "preparation: 4 pods of 8 CPUs and 8Gi tokenize the text before slices are requested"
        in call("plan", str(write_job(tmp_path, data=PHASE))).out.splitlines()
    )
    assert (
        "preparation: 1 pod of 4 CPUs and 8Gi tokenizes the" in call("plan", str(write_job(tmp_path, data=alone))).out
    )
    assert "preparation" not in call("plan", str(write_job(tmp_path))).out


def test_the_preparation_phase_is_rendered_before_slices(tmp_path: Path) -> None:
    rendered = list(yaml.safe_load_all(call("render", str(write_job(tmp_path, data=PHASE))).out))

    assert [manifest["kind"] for manifest in rendered] == ["ConfigMap", "Job", "JobSet", "JobSet"]
    assert rendered[1]["spec"]["parallelism"] == 4


def test_a_run_on_this_machine_has_no_preparation_phase() -> None:
    raw = localize_spec(TrainingJobSpec.model_validate(make_spec(data=PHASE)), None)

    assert "prepare" not in raw["data"]


@pytest.mark.thorough
def test_only_training_is_simulated(tmp_path: Path) -> None:
    simulated = [
        call("simulate", str(write_job(tmp_path, data=data)), "--step-seconds", "1").out
        for data in (PHASE, {"train": PHASE["train"]})
    ]

    assert simulated[0] == simulated[1] != ""


@pytest.mark.slow
def test_the_trainer_prepares_a_folder_and_finds_it_again(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web/a.txt").write_text("Once upon a time. " * 40)
    data = {"train": [{"name": "web", "path": "/shared/web"}]}
    job = write_job(tmp_path, data=data, evaluation=[], tokenizer={"type": "byte"})
    command = ("prepare", str(job), "--volume", f"shared={tmp_path}")

    first = trainingjob(*command, cwd=tmp_path)
    (index,) = (tmp_path / "run/data").glob("*/index.json")
    written = index.stat().st_mtime_ns
    again = trainingjob(*command, cwd=tmp_path)
    os.utime(tmp_path / "web/a.txt", (0, 0))
    changed = trainingjob(*command, cwd=tmp_path)

    assert (first.returncode, again.returncode, changed.returncode) == (0, 0, 0), first.stderr + again.stderr
    assert "web  1 file  1 document  720 characters  721 tokens" in first.stdout
    assert again.stdout == first.stdout
    assert index.stat().st_mtime_ns == written
    assert len(list((tmp_path / "run/data").glob("*/index.json"))) == 2
