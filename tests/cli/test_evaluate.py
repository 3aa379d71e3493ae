"""`trainingjob evaluate`: the table, the JSON, and what cannot be evaluated."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.test_weights import answer_with, call, trainingjob, write_job
from trainingjob_api.weights_exchange import EvaluateReport, ExchangeAnswer, ExchangeProgress, TextReport
from trainingjob_operator.cli import evaluate_folder
from trainingjob_operator.core.catalog import BUILTIN

PAGE = Path(__file__).parents[2] / "docs/evaluation.md"
NEWS = TextReport(
    name="data-1", path="/text/news", num_sequences=20, num_predictions=1280, loss=2.0, accuracy=0.5, bits_per_byte=1.25
)
ODD = NEWS.model_copy(update={"path": "/text/odd", "loss": 1000.0, "accuracy": 0.0, "bits_per_byte": None})


def report(*texts: TextReport, step: int | None = 1200) -> ExchangeAnswer:
    return ExchangeAnswer(evaluated=EvaluateReport(step=step, sequence_length=64, texts=texts))


def test_the_scores_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ExchangeAnswer(progress=ExchangeProgress(done=5, total=40)), report(NEWS, ODD))

    result = call("evaluate", str(tmp_path), "--data", str(tmp_path))

    assert result.out.splitlines() == [
        "text        predictions       loss  perplexity  accuracy  bits per byte",
        "/text/news       1.28 k     2.0000       7.389    50.0 %         1.2500",
        "/text/odd        1.28 k  1000.0000  1.014e+304     0.0 %",
    ]
    assert result.err == f"40 sequences of 64 tokens, step 1,200 of {tmp_path}\n"
    assert result.code == 0


def test_the_scores_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, report(NEWS, step=None))

    result = call("evaluate", str(tmp_path), "--data", str(tmp_path), "-o", "json")

    (text,) = json.loads(result.out)["texts"]
    assert text.pop("perplexity") == pytest.approx(7.389, abs=1e-3)
    assert text == {
        "name": "data-1",
        "path": "/text/news",
        "sequences": 20,
        "predictions": 1280.0,
        "loss": 2.0,
        "accuracy": 0.5,
        "bitsPerByte": 1.25,
    }
    assert (json.loads(result.out)["step"], json.loads(result.out)["sequenceLength"], result.err) == (None, 64, "")


KINDS = {
    "a.txt": "text",
    "a.jsonl": "jsonl",
    "a.jsonl.zst": "jsonl",
    "a.parquet": "parquet",
    "a.md": "text",
    "": "text",
}


@pytest.mark.parametrize(("name", "want"), KINDS.items(), ids=KINDS)
def test_a_file_is_read_by_its_suffix(name: str, want: str, tmp_path: Path) -> None:
    (tmp_path / (name or "folder.jsonl" if name else "other")).write_text("")

    assert evaluate_folder._describe_text(1, tmp_path / name).format == want


ENDS: dict[str, tuple[ExchangeAnswer, str]] = {
    "an error": (ExchangeAnswer(error="--data: /text gives no token"), "--data: /text gives no token"),
    "no result": (ExchangeAnswer(progress=ExchangeProgress(done=1, total=2)), "the trainer ended without an answer."),
}


@pytest.mark.parametrize(("answer", "want"), ENDS.values(), ids=ENDS)
def test_an_evaluation_that_ends_early_is_no_result(
    answer: ExchangeAnswer, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, answer)

    result = call("evaluate", str(tmp_path), "--data", str(tmp_path))

    assert (result.code, result.out, result.err) == (2, "", f"Error: {want}\n")


WRONG = {
    "no folder": (("/nowhere", "--data", "/"), "CHECKPOINT: /nowhere must be a folder."),
    "no text": (("/",), "Name the text to score: either --data PATH, or --job FILE with its `evaluation`."),
    "two kinds of texts": (("/", "--data", "/", "--job", "a.yaml"), "Name the text to score: either --data PATH"),
    "a text that is missing": (("/", "--data", "/no"), "--data: /no must be a file or a folder."),
    "no tokenizer": (("/", "--data", "/", "--tokenizer", "/no"), "--tokenizer: /no must be a tokenizer.json file."),
    "a volume without a job": (("/", "--data", "/", "--volume", "a=/b"), "--volume must be set with --job"),
    "another format": (("/", "--data", "/", "-o", "csv"), "--output: csv must be one of: table, json."),
}


@pytest.mark.parametrize(("args", "want"), WRONG.values(), ids=WRONG)
def test_what_the_command_cannot_use_is_named(args: tuple[str, ...], want: str) -> None:
    result = call("evaluate", *args)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"Error: {want}")


def test_a_job_without_evaluations_is_named(tmp_path: Path) -> None:
    result = call("evaluate", str(tmp_path), "--job", str(write_job(tmp_path)))

    assert result.code == 2
    assert "has no `spec.evaluation`. Add one, or name the text with --data." in result.err


PLACES = {
    "the folder of the volume": ("/work/runs/tiny", (), "/work/text", "/other/more"),
    "another folder": ("/work/runs/copy", (), "/shared/text", "/other/more"),
    "chosen volumes": ("/work/runs/tiny", ("shared=a", "other=b"), "HERE/a/text", "HERE/b/more"),
    "a bucket": ("gs://runs/tiny", (), "/shared/text", "/other/more"),
    "a pod": ("/shared/runs/tiny", (), "/shared/text", "/other/more"),
}


@pytest.mark.parametrize(("checkpoint", "volumes", "text", "more"), PLACES.values(), ids=PLACES)
def test_paths_of_a_job_are_read_on_this_machine(
    checkpoint: str, volumes: tuple[str, ...], text: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    evaluation = [
        {"name": "a", "path": "/shared/text", "everySteps": 1},
        {"name": "b", "path": "/other/more", "everySteps": 1},
    ]
    job = write_job(tmp_path, evaluation=evaluation, checkpoint={"uri": "/shared/runs/tiny"})
    written = yaml.safe_load(job.read_text())
    written["spec"]["runtime"]["volumes"] = [
        {"name": name, "mountPath": f"/{name}", "claimName": name} for name in ("shared", "other")
    ]
    job.write_text(yaml.safe_dump(written))
    options = evaluate_folder.EvaluateOptions(str(checkpoint), (), str(job), volumes, None, None, None)

    spec = evaluate_folder._read_job(str(job), options, BUILTIN)

    assert [one.path for one in spec.evaluation] == [path.replace("HERE", str(tmp_path)) for path in (text, more)]


@pytest.mark.slow
def test_the_commands_of_the_page_score_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "held-out").mkdir()
    (tmp_path / "held-out/a.txt").write_text("Once upon a time there was a text. " * 40)
    evaluation = {"name": "held-out", "path": "/shared/held-out", "everySteps": 1, "numBatches": "all"}
    job = write_job(
        tmp_path, evaluation=[evaluation], tokenizer={"type": "byte"}, checkpoint={"uri": "/shared/runs/tiny"}
    )
    written = yaml.safe_load(job.read_text())
    written["spec"]["model"]["vocabSize"] = 257
    job.write_text(yaml.safe_dump(written))
    ran = trainingjob("run", "tiny.yaml", "--dir", "run", "--volume", "shared=.", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs/tiny/metrics/metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "held_out_loss" in line][-1]
    commands = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ trainingjob evaluate")]
    assert len(commands) == 2

    for command in commands:
        done = trainingjob(*shlex.split(command)[1:], "-o", "json", cwd=tmp_path)

        assert done.returncode == 0, done.stdout + done.stderr
        (text,) = json.loads(done.stdout)["texts"]
        assert text["loss"] == pytest.approx(measured["held_out_loss"], rel=1e-3)
        assert text["accuracy"] == pytest.approx(measured["held_out_accuracy"], rel=1e-2)
        assert text["bitsPerByte"] == pytest.approx(measured["held_out_bits_per_byte"], rel=1e-3)
