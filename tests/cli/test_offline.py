"""`validate`, `plan` and `render` on the examples: what a user sees, word for word."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from trainingjob_operator.cli import main as main_module
from trainingjob_operator.cli.main import app

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/cli"
EXAMPLES = sorted(path.stem for path in (ROOT / "crds/examples").glob("*.yaml"))
INVALID = sorted(path.stem for path in (ROOT / "crds/examples/invalid").glob("*.yaml"))
HEAVY = {"rich", "pydantic", "yaml", "asyncio", "aiohttp", "kubernetes"}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def call(*args: str, given: str | None = None) -> SimpleNamespace:
    result = CliRunner().invoke(app, list(args), input=given, catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_valid_and_planned(example: str, golden: Callable[[Path, str], None]) -> None:
    path = f"crds/examples/{example}.yaml"
    validated, planned = call("validate", path), call("plan", path)

    assert (validated.code, planned.code) == (0, 0)
    golden(GOLDEN / f"{example}.txt", f"{validated.out}\n{planned.out}")


@pytest.mark.parametrize("example", INVALID)
def test_an_invalid_example_is_told_all_its_problems(example: str) -> None:
    path = f"crds/examples/invalid/{example}.yaml"
    problems = Path(f"crds/examples/invalid/{example}.problems.txt").read_text().splitlines()[1:]
    validated, planned = call("validate", path), call("plan", path)

    assert (validated.code, planned.code, planned.out) == (1, 1, "")
    assert [line for line in validated.out.splitlines() if line.startswith("  ")] == problems
    assert planned.err.splitlines()[1:] == problems


def test_warnings_stand_apart_from_problems() -> None:
    text = Path("crds/examples/demo.yaml").read_text().replace("compute: float32", "compute: bfloat16")

    result = call("validate", "-", given=text)

    assert result.code == 0
    (warning,) = result.out.splitlines()[1:]
    assert warning.startswith("Warning  spec.precision.compute: bfloat16 is slower than float32 on cpu")


def test_every_file_gets_its_verdict() -> None:
    bad, good = "crds/examples/invalid/mesh.yaml", "crds/examples/demo.yaml"

    result = call("validate", bad, good)

    assert result.code == 1
    assert f"{bad}: TrainingJob" in result.out
    assert f'{good}: TrainingJob "demo" is valid' in result.out


def test_other_documents_beside_a_job_are_named() -> None:
    text = Path("crds/examples/demo.yaml").read_text() + "---\nkind: ConfigMap\n"

    result = call("validate", "-", given=text)

    assert result.code == 0
    assert "standard input, document 2, is a ConfigMap, not a TrainingJob: not checked." in result.out


def test_a_file_without_a_job_is_no_success() -> None:
    result = call("validate", "-", given="kind: TrainingJobb\n")

    assert result.code == 1
    assert "there is no TrainingJob in -." in result.err
    assert "standard input is a TrainingJobb, not a TrainingJob" in result.err


def test_a_size_that_cannot_be_is_explained() -> None:
    text = Path("crds/examples/demo.yaml").read_text().replace("max: 2", "max: 3")
    text = text.replace("ici: {data: -1, fsdp: 2}", "{ici: {tensor: 4}, dcn: {fsdp: -1}}")
    text = text.replace("embedDim: 256", "embedDim: 200").replace("numKvHeads: 2", "numKvHeads: 4")

    result = call("plan", "-", given=text)

    lines = result.out.splitlines()
    assert "     3       12  not possible" in lines
    (why,) = [line for line in lines if line.startswith("3 slices: ")]
    assert why.startswith("3 slices: spec.parallelism.dcn.fsdp: 3 does not divide spec.model.embedDim, 200.")


def test_a_plan_as_json_has_the_fields_of_the_status() -> None:
    plan = json.loads(call("plan", "--json", "crds/examples/demo.yaml").out)

    assert plan["name"] == "demo"
    assert [size["slices"] for size in plan["sizes"]] == [1, 2]
    assert plan["sizes"][1]["mesh"] == "dcn data=2 · ici data=2 fsdp=2"


def test_rendered_objects_can_be_applied_as_they_are() -> None:
    rendered = list(yaml.safe_load_all(call("render", "crds/examples/demo.yaml").out))

    assert [manifest["kind"] for manifest in rendered] == ["ConfigMap", "JobSet", "JobSet"]
    assert json.loads(rendered[0]["data"]["run.json"])["spec"]["training"]["steps"] == 150


def test_rendered_objects_go_to_files(tmp_path: Path) -> None:
    result = call("render", "crds/examples/fixed.yaml", "--output", str(tmp_path / "out"))

    (config, jobset) = sorted((tmp_path / "out").iterdir())
    assert result.out == f"wrote {config}\nwrote {jobset}\n"
    assert yaml.safe_load(jobset.read_text())["kind"] == "JobSet"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = call("render", "crds/examples/fixed.yaml", "--output", str(tmp_path / "file"))

    assert result.code == 1
    assert result.err == f"Error: Cannot write to {tmp_path / 'file'}: File exists.\n"


PROGRAMS = {
    "trainingjob": "trainingjob",
    "/usr/local/bin/kubectl-trainingjob": "kubectl trainingjob",
}


@pytest.mark.parametrize(("called", "want"), PROGRAMS.items(), ids=PROGRAMS.keys())
def test_help_calls_the_program_as_the_user_does(
    called: str, want: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [called, "--help"])

    with pytest.raises(SystemExit) as ended:
        main_module.main()

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"Usage: {want} [OPTIONS] COMMAND")


def test_help_loads_nothing_heavy() -> None:
    program = "import sys; from trainingjob_operator.cli.main import app; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()

    assert HEAVY.isdisjoint(loaded)
