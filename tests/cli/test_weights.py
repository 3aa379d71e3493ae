"""`trainingjob import` and `trainingjob export`: the model section, the report, exported files, and errors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.support.builders import spec_manifest
from tests.support.command_line import CliRunner
from trainingjob_api.weights_exchange import ExchangeAnswer, ExchangeProgress, ExportReport, WeightsReport
from trainingjob_operator.cli import weights
from trainingjob_operator.cli.entry_point import app

FIXTURES = Path(__file__).parents[1] / "fixtures/huggingface"
LLAMA = FIXTURES / "llama"
WORDS = ("<unk>", "</s>", *(f"word{number}" for number in range(60)))
REPORT = WeightsReport(
    model_type="llama",
    section={"vocabSize": 64},
    num_parameters=7_000,
    num_bytes=28_000,
    matched=("a",),
    missing=(),
    unused=(),
    misfits=(),
)


def call(*args: str) -> SimpleNamespace:
    result = CliRunner().invoke(app, [*args], catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def answer_with(monkeypatch: pytest.MonkeyPatch, *answers: ExchangeAnswer | str, code: int = 0) -> None:
    """Put a program in the trainer's place that reads a request and prints these lines."""
    lines = "\n".join(one if isinstance(one, str) else one.model_dump_json() for one in answers)
    program = f"import sys; sys.stdin.read(); print('the end', file=sys.stderr); print({lines!r}); sys.exit({code})"
    monkeypatch.setattr(weights, "PROGRAM", ("-c", program))


def test_the_model_section_of_a_folder_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ExchangeAnswer(report=REPORT))

    result = call("import", str(LLAMA))

    assert (result.code, yaml.safe_load(result.out)) == (0, {"model": {"vocabSize": 64}})
    assert "llama: 7 k parameters, 28 kB, 1 tensor matched\n" in result.err


def test_tensors_that_do_not_fit_are_listed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"layers.{number}" for number in range(12))
    answer_with(monkeypatch, ExchangeAnswer(report=REPORT.model_copy(update={"missing": names, "unused": ("u",)})))

    some, everything = call("import", str(LLAMA)), call("import", str(LLAMA), "--all")

    assert (some.code, everything.code) == (1, 1)
    assert "12 tensors missing:\n  layers.0\n" in some.err
    assert "  layers.9\n  and 2 more: --all lists them\n1 tensor not used:\n  u\n" in some.err
    assert "  layers.11\n1 tensor not used:\n" in everything.err


def test_the_report_as_json_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ExchangeAnswer(report=REPORT))

    result = call("import", str(LLAMA), "--json")

    assert WeightsReport.model_validate_json(result.out) == REPORT


ERRORS = {
    "an error of the files": ([ExchangeAnswer(error="config.json is missing")], 0, "Error: config.json is missing\n"),
    "no answer": ([], 0, "Error: the trainer ended without an answer.\n"),
    "a crash": ([], 3, "Error: the trainer exited with code 3:\nthe end\n"),
    "another output": (["{}}"], 0, "Error: the trainer's output cannot be read: {}}\n"),
}


@pytest.mark.parametrize("command", ["import", "export"])
@pytest.mark.parametrize(("answers", "code", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_no_result(
    command: str,
    answers: list[ExchangeAnswer | str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    answer_with(monkeypatch, *answers, code=code) if answers else monkeypatch.setattr(
        weights, "PROGRAM", ("-c", f"import sys; sys.stdin.read(); print('the end', file=sys.stderr); sys.exit({code})")
    )
    args = {"import": (str(LLAMA),), "export": (str(write_job(tmp_path)), str(tmp_path / "out"))}

    result = call(command, *args[command])

    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(message)


def write_job(folder: Path, **sections: Any) -> Path:
    """Write a job of the model of the fixture, whose learning rate changes no weight."""
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text/part.txt").write_text(" ".join(f"word{place % 50}" for place in range(2000)))
    spec: dict[str, Any] = {
        "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
        "model": {
            "vocabSize": 64, "embedDim": 16, "mlpDim": 24, "numLayers": 2, "numHeads": 4, "numKvHeads": 2, "headDim": 8,
        },
        "data": {"train": [{"name": "text", "path": str(folder / "text")}]},
        "tokenizer": {"type": "tokenizers", "path": str(folder / "tokenizer.json"), "endOfDocument": "</s>"},
        "training": {"steps": 2, "globalBatchSize": 2, "sequenceLength": 16},
        "optimizer": {"learningRate": 1e-40},
        "precision": {"compute": "float32"},
        "checkpoint": {"uri": "/shared/tiny"},
    }  # fmt: skip
    job = {
        "apiVersion": "trainingjob.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny"},
        "spec": spec_manifest(**spec | sections),
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def test_an_export_shows_what_was_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = ExportReport(step=1200, architecture="LlamaForCausalLM", num_files=3)
    progress = ExchangeProgress(done=5, total=10)
    answer_with(monkeypatch, ExchangeAnswer(progress=progress), ExchangeAnswer(exported=done))

    result = call("export", str(write_job(tmp_path)), str(tmp_path / "out"), "--dtype", "bfloat16")

    assert result.code == 0
    assert result.out == f"exported step 1,200 to {tmp_path}/out: LlamaForCausalLM, bfloat16, 3 files\n"


def test_a_model_of_no_architecture_is_not_exported(tmp_path: Path) -> None:
    model = {"vocabSize": 64, "embedDim": 16, "mlpDim": 24, "numLayers": 2, "numHeads": 4, "headDim": 8}
    job = write_job(tmp_path, model=model | {"logits": {"scale": 0.5}})

    result = call("export", str(job), str(tmp_path / "out"))

    assert (result.code, result.out) == (1, "")
    assert "spec.model: no supported architecture of transformers computes this model." in result.err


def test_an_unknown_format_is_a_wrong_use(tmp_path: Path) -> None:
    result = call("export", str(write_job(tmp_path)), str(tmp_path / "out"), "--dtype", "fp8")

    assert result.code == 2
    assert "--dtype: fp8 must be one of: float32, bfloat16, float16." in result.err


def test_an_unknown_form_of_adapters_is_a_wrong_use(tmp_path: Path) -> None:
    result = call("export", str(write_job(tmp_path)), str(tmp_path / "out"), "--adapter", "alone")

    assert result.code == 2
    assert "--adapter: alone must be one of: merged, peft." in result.err


def test_adapters_of_a_job_without_lora_are_a_wrong_use(tmp_path: Path) -> None:
    result = call("export", str(write_job(tmp_path)), str(tmp_path / "out"), "--adapter", "peft")

    assert result.code == 2
    assert "--adapter must not be set for a job without `spec.lora`." in result.err


@pytest.mark.slow
def test_a_run_starts_from_published_weights_and_its_checkpoint_is_exported(tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "models/llama")
    checkpoint = {
        "uri": "/shared/tiny",
        "initializeFrom": {"huggingFace": {"path": "/shared/llama"}},
        "export": {"huggingFace": {"uri": "/shared/exported"}},
    }
    imported = trainingjob("import", str(LLAMA))
    assert imported.returncode == 0, imported.stderr
    job = write_job(tmp_path, model=yaml.safe_load(imported.stdout)["model"], checkpoint=checkpoint)
    shared = tmp_path / "models"

    ran = trainingjob("run", str(job), "--dir", str(tmp_path / "run"), "--volume", f"shared={shared}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    exported = trainingjob("export", str(job), str(tmp_path / "out"), "--from", str(shared / "tiny"))

    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == f"exported step 2 to {tmp_path}/out: LlamaForCausalLM, float32, 1 file\n"
    tensors = read_tensors(LLAMA)
    assert read_tensors(shared / "exported") == tensors
    assert read_tensors(tmp_path / "out") == tensors
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in (shared / "exported").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    wrong = trainingjob("export", str(write_job(tmp_path)), str(tmp_path / "out"), "--from", str(tmp_path / "text"))
    assert wrong.returncode == 2
    assert "text holds no intact step of a TrainingJob." in wrong.stderr


def trainingjob(*args: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    program = "import sys; from trainingjob_operator.cli.entry_point import main; sys.argv[0] = 'trainingjob'; main()"
    return subprocess.run([sys.executable, "-c", program, *args], cwd=cwd, capture_output=True, text=True, check=False)


def read_tensors(folder: Path) -> dict[str, bytes]:
    """Return the numbers of each tensor of the only file of a folder."""
    content = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {
        name: content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        for name, entry in header.items()
    }
