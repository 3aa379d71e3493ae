"""`render`: the objects of a job, as the operator would create them, with the image of its platform."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def call(*args: str) -> SimpleNamespace:
    result = CliRunner().invoke(app, list(args), catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def test_rendered_objects_can_be_applied_as_they_are() -> None:
    rendered = list(yaml.safe_load_all(call("render", "crds/examples/demo.yaml").out))

    assert [manifest["kind"] for manifest in rendered] == ["ConfigMap", "JobSet", "JobSet"]
    assert json.loads(rendered[0]["data"]["run.json"])["spec"]["training"]["steps"] == 100


@pytest.mark.parametrize(
    ("example", "image", "comment"),
    [
        ("h100-2-nodes", "trainingjob-trainer-cuda13", "# trainer image: that of the chart's `trainer.images.cuda13`"),
        ("demo", "trainingjob-trainer", "apiVersion:"),
    ],
)
def test_rendered_pods_have_the_image_of_their_platform(example: str, image: str, comment: str) -> None:
    result = call("render", f"crds/examples/{example}.yaml")

    assert result.out.startswith(comment)
    assert f"image: {image}\n" in result.out


def test_a_plan_names_the_image_of_the_job(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "crds/examples/demo.yaml").read_text())
    job["spec"]["runtime"]["image"] = "mine:1"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    assert "trainer image: mine:1, which `spec.runtime.image` names" in call("plan", str(tmp_path / "job.yaml")).out


def test_rendered_objects_go_to_files(tmp_path: Path) -> None:
    result = call("render", "crds/examples/fixed.yaml", "--output", str(tmp_path / "out"))

    (config, jobset) = sorted((tmp_path / "out").iterdir())
    assert result.out == f"wrote {config}\nwrote {jobset}\n"
    assert yaml.safe_load(jobset.read_text())["kind"] == "JobSet"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = call("render", "crds/examples/fixed.yaml", "--output", str(tmp_path / "file"))

    assert result.code == 2
    assert result.err == f"Error: Cannot write to {tmp_path / 'file'}: File exists.\n"
