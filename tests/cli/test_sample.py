"""`trainingjob sample`: the text, its origin, and what cannot be sampled."""

import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.test_weights import answer_with, call, trainingjob, write_job
from trainingjob_api.weights_exchange import ExchangeAnswer, SampleReport

PAGE = Path(__file__).parents[2] / "docs/samples.md"


def report(step: int | None = 1200, *, is_ended: bool = True) -> ExchangeAnswer:
    return ExchangeAnswer(sampled=SampleReport(step=step, num_tokens=2, is_ended=is_ended))


ORIGINS = {
    "a step": (report(), "2 tokens from step 1,200 of {path}\n"),
    "published weights": (report(None), "2 tokens from {path}\n"),
    "a text at its limit": (
        report(is_ended=False),
        "2 tokens from step 1,200 of {path}; --max-tokens raises the limit\n",
    ),
}


@pytest.mark.parametrize(("last", "want"), ORIGINS.values(), ids=ORIGINS)
def test_the_prompt_and_its_text_are_printed(
    last: ExchangeAnswer, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, ExchangeAnswer(text=" upon"), ExchangeAnswer(text=" a"), last)

    result = call("sample", str(tmp_path), "--prompt", "Once")

    assert (result.code, result.out, result.err) == (0, "Once upon a\n", want.format(path=tmp_path))


def test_a_text_without_tokens_is_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, report())

    assert call("sample", str(tmp_path), "--prompt", "Once").out == "Once\n"


def test_an_error_of_the_trainer_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ExchangeAnswer(error="--prompt must have a token or more"))

    result = call("sample", str(tmp_path), "--prompt", "Once")

    assert (result.code, result.out, result.err) == (2, "", "Error: --prompt must have a token or more\n")


def test_no_answer_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch)

    assert call("sample", str(tmp_path), "--prompt", "Once").code == 2


WRONG = {
    "no folder": (("/nowhere", "--prompt", "a"), "CHECKPOINT: /nowhere must be a folder."),
    "no prompt": (("/", "--prompt", ""), "--prompt must have a character or more."),
    "no temperature": (
        ("/", "--prompt", "a", "--temperature", "0"),
        "--temperature: 0 must be a finite number greater than 0.",
    ),
    "a temperature that is no number": (
        ("/", "--prompt", "a", "--temperature", "nan"),
        "--temperature: nan must be a fin",
    ),
    "an infinite temperature": (("/", "--prompt", "a", "--temperature", "inf"), "--temperature: inf must be a finite"),
    "no tokenizer": (("/", "--prompt", "a", "--tokenizer", "/no"), "--tokenizer: /no must be a tokenizer.json file."),
}


@pytest.mark.parametrize(("args", "want"), WRONG.values(), ids=WRONG)
def test_what_the_command_cannot_use_is_named(args: tuple[str, ...], want: str) -> None:
    result = call("sample", *args)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"Error: {want}")


@pytest.mark.slow
def test_a_job_and_the_commands_of_the_page_write_text(tmp_path: Path) -> None:
    section, console = (PAGE.read_text().split(f"```{kind}\n")[1].partition("```")[0] for kind in ("yaml", "console"))
    (evaluation,) = yaml.safe_load(section)["evaluation"]
    evaluation |= {"path": str(tmp_path / "text"), "everySteps": 1}
    evaluation["samples"][1]["everySteps"] = 2
    job = write_job(
        tmp_path, evaluation=[evaluation], tokenizer={"type": "byte"}, checkpoint={"uri": "/shared/runs/tiny"}
    )
    written = yaml.safe_load(job.read_text())
    written["spec"]["model"]["vocabSize"] = 257
    written["spec"]["training"]["sequenceLength"] = 64
    job.write_text(yaml.safe_dump(written))

    def run(*args: str) -> str:
        done = trainingjob(*args, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("run", "tiny.yaml", "--dir", "run", "--volume", "shared=.")
    texts = (tmp_path / "runs/tiny/metrics/samples.jsonl").read_text().splitlines()
    assert len(texts) == 3
    _, *args = shlex.split(console.removeprefix("$ "))

    text = run(*args)

    assert text.startswith("Once upon a time")
    assert len(text) > len("Once upon a time\n")
