"""`validate`, `plan` and `render` on the examples: their exact output."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_operator.cli import entry_point as main_module
from trainingjob_operator.cli.entry_point import app

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
def test_invalid_example_reports_all_its_problems(example: str) -> None:
    path = f"crds/examples/invalid/{example}.yaml"
    problems = Path(f"crds/examples/invalid/{example}.problems.txt").read_text().splitlines()[1:]
    validated, planned = call("validate", path), call("plan", path)

    assert (validated.code, planned.code, planned.out) == (1, 1, "")
    assert [line for line in validated.out.splitlines() if line.startswith("  ")] == problems
    assert planned.err.splitlines()[1:] == problems


def test_warnings_are_separate_from_problems() -> None:
    text = Path("crds/examples/demo.yaml").read_text().replace("compute: float32", "compute: bfloat16")

    result = call("validate", "-", given=text)

    assert result.code == 0
    (warning,) = result.out.splitlines()[1:]
    assert warning.startswith(
        "Warning  spec.precision.compute: bfloat16 is slower and less precise than float32 on cpu"
    )


def test_every_file_has_a_result() -> None:
    bad, good = "crds/examples/invalid/mesh.yaml", "crds/examples/demo.yaml"

    result = call("validate", bad, good)

    assert result.code == 1
    assert f"{bad}: TrainingJob" in result.out
    assert f'{good}: TrainingJob "demo" is valid' in result.out


def test_unreadable_file_does_not_prevent_results_of_others() -> None:
    good, bad = "crds/examples/demo.yaml", "crds/examples/invalid/mesh.yaml"

    result = call("validate", "nowhere.yaml", good, bad)

    assert result.code == 2
    assert result.err == "Error: Cannot read nowhere.yaml: No such file or directory.\n"
    assert f'{good}: TrainingJob "demo" is valid' in result.out
    assert f'{bad}: TrainingJob "mesh" has 5 problems' in result.out


def test_a_misspelt_kind_is_no_success() -> None:
    good = Path("crds/examples/demo.yaml").read_text()
    result = call("validate", "-", given=f"{good}---\n{good.replace('kind: TrainingJob', 'kind: Trainingjob')}")

    assert result.code == 2
    assert "is a Trainingjob, not a TrainingJob: not checked. Was `kind: TrainingJob`" in result.out


def test_metadata_is_validated() -> None:
    text = Path("crds/examples/demo.yaml").read_text()
    result = call("validate", "-", given=f"{text.replace('  name: demo', '  name: demo\n  lables: {}')}\nsepc: {{}}\n")

    assert result.code == 1
    assert "  metadata.lables: lables is not a field of metadata." in result.out
    assert "  sepc: sepc is not a field of a TrainingJob." in result.out


CODES: dict[str, tuple[tuple[str, ...], int]] = {
    "a valid job": (("validate", "crds/examples/demo.yaml"), 0),
    "an invalid job": (("validate", "crds/examples/invalid/mesh.yaml"), 1),
    "an invalid job, planned": (("plan", "crds/examples/invalid/mesh.yaml"), 1),
    "an invalid job, rendered": (("render", "crds/examples/invalid/mesh.yaml"), 1),
    "no file": (("plan", "nowhere.yaml"), 2),
    "no file, rendered": (("render", "nowhere.yaml"), 2),
    "no such option": (("plan", "--nowhere", "crds/examples/demo.yaml"), 2),
    "no such command": (("plans",), 2),
    "the same plan": (("plan", "crds/examples/demo.yaml", "--diff", "crds/examples/demo.yaml"), 0),
    "another plan": (("plan", "crds/examples/demo.yaml", "--diff", "crds/examples/fixed.yaml"), 1),
    "no other plan": (("plan", "crds/examples/demo.yaml", "--diff", "nowhere.yaml"), 2),
    "a field": (("explain", "spec.model"), 0),
    "no field": (("explain", "spec.models"), 2),
}


@pytest.mark.parametrize(("args", "want"), CODES.values(), ids=CODES.keys())
def test_exit_codes_distinguish_invalid_from_unreadable(args: tuple[str, ...], want: int) -> None:
    assert call(*args).code == want


@pytest.mark.parametrize("command", ["validate", "plan", "render", "explain"])
def test_help_lists_the_exit_codes(command: str) -> None:
    assert "Exit codes: 0 " in call(command, "--help").out


def test_documents_of_other_kinds_are_named() -> None:
    text = Path("crds/examples/demo.yaml").read_text() + "---\nkind: ConfigMap\n"

    result = call("validate", "-", given=text)

    assert result.code == 0
    assert "standard input, document 2, is a ConfigMap, not a TrainingJob: not checked." in result.out


def test_a_file_without_a_job_is_no_success() -> None:
    result = call("validate", "-", given="kind: TrainingJobb\n")

    assert result.code == 2
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
    assert why.startswith("3 slices: spec.parallelism.dcn.fsdp: 3 must divide `spec.model.embedDim` (200).")


def test_plan_reports_the_wait_for_repairs() -> None:
    text = Path("crds/examples/elastic.yaml").read_text()
    words = "after a loss: waits up to 90s for as many slices as before, then resumes with fewer"

    assert words not in call("plan", "-", given=text).out
    patient = text.replace("  elastic:\n", "  elastic:\n    policy: wait\n    shrinkAfter: 90s\n")
    assert words in call("plan", "-", given=patient).out.splitlines()
    unsure = patient.replace("policy: wait", "policy: auto")
    assert "waits as long as its past repairs justify, up to 90s, for" in call("plan", "-", given=unsure).out


def test_plan_of_epochs_leaves_shares_of_the_steps_to_the_hosts() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())
    written["spec"]["training"] |= {"steps": None, "epochs": 2.5}
    for warmup, steps, words in (
        ("1%", None, "warm-up: 1% of the steps, which the hosts count from 2.5 epochs"),
        (7, 7, ""),
    ):
        written["spec"]["schedule"] = {"warmup": warmup}
        text = yaml.safe_dump(written)

        assert json.loads(call("plan", "--json", "-", given=text).out)["warmupSteps"] == steps
        assert words in call("plan", "-", given=text).out


def test_plan_reports_the_chunks_of_the_logits() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())
    words = "loss: a device computes the logits of a microbatch in 4 chunks, one after the other"

    assert words not in call("plan", "-", given=yaml.safe_dump(written)).out
    written["spec"]["memory"] = {"lossChunks": 4}
    assert words in call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()


def test_plan_reports_the_quantized_matmuls() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())

    assert "matmuls: " not in call("plan", "-", given=yaml.safe_dump(written)).out
    written["spec"]["precision"] = {"quantization": {"type": "int8", "exclude": ["*.attention.out"]}}
    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()
    assert "int8 matmuls: 6 of 7 matrices of the layers, without layers.attention.out" in lines
    written["spec"]["precision"]["quantization"] = {"type": "fp8"}
    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()
    assert "fp8 matmuls: 7 of 7 matrices of the layers" in lines


def test_the_list_of_tensors_has_the_formats_of_matmuls() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())
    head, *_ = call("plan", "--tensors", "-", given=yaml.safe_dump(written)).out.splitlines()
    assert head.split() == ["tensor", "shape", "parameters", "training"]

    written["spec"]["precision"] = {"quantization": {"type": "int8", "exclude": ["*.attention.out"]}}
    head, *rows = call("plan", "--tensors", "-", given=yaml.safe_dump(written)).out.splitlines()
    described = json.loads(call("plan", "--tensors", "--json", "-", given=yaml.safe_dump(written)).out)

    formats = {one["name"]: one["matmul"] for one in described}
    assert {"layers.mlp.up": "int8", "layers.attention.out": "bfloat16", "norm.scale": None}.items() <= formats.items()
    assert head.split()[-1] == "matmul"
    assert [row.split()[-1] for row in rows if "layers.attention.out" in row] == ["bfloat16"]


def test_json_plan_has_stable_fields(golden: Callable[[Path, str], None]) -> None:
    text = call("plan", "--json", "crds/examples/tpu-v5p-4-slices.yaml").out
    plan = json.loads(text)

    golden(GOLDEN / "tpu-v5p-4-slices.json", text)
    assert plan["name"] == "llama3-8b"
    assert [size["slices"] for size in plan["sizes"]] == plan["allowed"] == [2, 3, 4]
    assert plan["sizes"][0]["mesh"] == "dcn data=2 · ici fsdp=16 tensor=4"
    assert plan["sizes"][0]["memory"]["total"] > 2**30


def test_json_plan_contains_illegal_sizes_and_warnings() -> None:
    text = Path("crds/examples/demo.yaml").read_text().replace("max: 2", "max: 3")
    text = text.replace("ici: {data: -1, fsdp: 2}", "dcn: {data: 1, fsdp: -1}").replace(
        "embedDim: 256", "embedDim: 200"
    )

    plan = json.loads(call("plan", "--json", "-", given=text).out)

    assert [size["valid"] for size in plan["sizes"]] == [True, True, False]
    assert (plan["sizes"][2]["layout"], plan["sizes"][2]["memory"], plan["sizes"][2]["mesh"]) == (None, None, "")
    assert plan["sizes"][2]["invalidReason"].startswith(
        "spec.parallelism.ici.fsdp: 12 (ici fsdp=4 x dcn fsdp=3) must divide"
    )
    assert plan["warnings"][0].keys() == {"path", "value", "message", "nearest"}


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "args",
    [
        ("validate", "FILE"),
        ("plan", "FILE"),
        ("plan", "FILE", "--diff", "FILE"),
        ("render", "FILE"),
        ("explain", "model"),
    ],
    ids=" ".join,
)
def test_offline_commands_load_neither_a_cluster_s_client_nor_a_trainer(args: tuple[str, ...]) -> None:
    words = [word.replace("FILE", "crds/examples/demo.yaml") for word in args]
    program = (
        "import sys, contextlib, io\n"
        "from trainingjob_operator.cli.entry_point import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    app({words!r})\n"
        "print(*sys.modules)"
    )

    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()

    assert "trainingjob_operator.core.validation.validate" in loaded
    assert {"kubernetes", "jax", "numpy", "aiohttp", "asyncio", "rich"}.isdisjoint(loaded)


def test_help_loads_nothing_heavy() -> None:
    program = "import sys; from trainingjob_operator.cli.entry_point import app; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()

    assert HEAVY.isdisjoint(loaded)


ROWS = """
lab-gpu: {platform: cuda, resource: example.com/gpu, memory: 80Gi, topologies: {"4": {}}}
lab-tpu: {platform: tpu}
"""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.yaml"
    path.write_text(ROWS)
    return str(path)


@pytest.fixture
def lab_job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    text = Path("crds/examples/h100-2-nodes.yaml").read_text()
    path.write_text(text.replace("accelerator: nvidia-h100", "accelerator: lab-gpu").replace('"8"', '"4"'))
    return str(path)


def test_rows_of_an_administrator_hold_offline_too(rows: str, lab_job: str) -> None:
    without, validated = call("validate", lab_job), call("validate", lab_job, "--accelerators", rows)
    planned, rendered = (call(word, lab_job, "--accelerators", rows) for word in ("plan", "render"))
    compared = call("plan", lab_job, "--diff", lab_job, "--accelerators", rows)

    assert without.code == 1
    assert "lab-gpu must be an accelerator of the operator's hardware table" in without.out
    assert (validated.code, planned.code, rendered.code, compared.code) == (0, 0, 0, 0)
    assert "lab-gpu 4 · 1 to 2 slices" in planned.out
    assert "of 85.9 GB" in planned.out
    assert "example.com/gpu: '4'" in rendered.out
    assert validated.err.startswith("Warning  accelerators.lab-tpu: resource: Field required.")


def test_presets_of_an_administrator_hold_offline_too(tmp_path: Path) -> None:
    rows, job = tmp_path / "presets.yaml", tmp_path / "job.yaml"
    rows.write_text("team-8b: {model: {preset: llama3.1-8b, numLayers: 30}, context: 8192}\nbroken: {model: {}}\n")
    spec = yaml.safe_load(Path("crds/examples/h100-2-nodes.yaml").read_text())
    spec["spec"]["model"] = {"preset": "team-8b"}
    job.write_text(yaml.safe_dump(spec))
    without, validated = call("validate", str(job)), call("validate", str(job), "--presets", str(rows))
    listed, printed = call("presets", "--presets", str(rows)), call("presets", "team-8b", "--presets", str(rows))

    assert without.code == 1
    assert "team-8b is not a preset" in without.out
    assert validated.code == 0
    assert validated.err.startswith("Warning  presets.broken: context: Field required.")
    assert "team-8b" in listed.out
    assert "numLayers: 30" in printed.out


def test_a_file_without_rows_is_no_verdict(tmp_path: Path, lab_job: str) -> None:
    result = call("validate", lab_job, "--accelerators", str(tmp_path / "none.yaml"))

    assert (result.code, result.out) == (2, "")
    assert result.err == f"Error: accelerators: cannot read {tmp_path}/none.yaml: No such file or directory.\n"
