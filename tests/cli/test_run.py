"""`trainingjob run` with real agents and trainers: a stop, a killed slice, completion, and rejected runs."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.builders import spec_manifest
from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.cli.local import run as local_run
from trainingjob_operator.shell.interfaces import Caller
from trainingjob_operator.shell.rendezvous import derive_program_secret

STEPS = 600
TINY: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "1x1", "min": 1, "max": 2},
    "data": {"train": [{"name": "json", "path": "python:json", "pattern": "*.py"}]},
    "training": {"steps": STEPS, "globalBatchSize": 4, "sequenceLength": 16},
    "precision": {"compute": "float32"},
    "checkpoint": {"uri": "/shared/tiny", "save": {"everySteps": 100}},
}


def write_job(folder: Path, **sections: Any) -> Path:
    job = {
        "apiVersion": "trainingjob.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny"},
        "spec": spec_manifest(**{**TINY, **sections}),
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    program = "import sys; from trainingjob_operator.cli.entry_point import main; sys.argv[0] = 'trainingjob'; main()"
    command = [sys.executable, "-c", program, "run", str(folder / "tiny.yaml"), "--dir", str(folder / "run"), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(run: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = run.communicate(timeout=300)
    return run.returncode, out


def processes_of(folder: Path) -> list[str]:
    """Return the processes whose environment contains a run's folder."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


def wait_until_nothing_runs(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.mark.slow
def test_a_run_is_stopped_and_taken_up_loses_a_slice_and_ends(tmp_path: Path) -> None:
    write_job(tmp_path)

    stopped = start(tmp_path)
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "tokens/s" in line:
            stopped.send_signal(signal.SIGINT)
            break
    code, out = end(stopped)

    assert code == 130, out
    saved = re.search(r"stopped; saved step ([0-9]+); the same command resumes", out)
    assert saved, out
    wait_until_nothing_runs(tmp_path / "run")

    code, out = end(start(tmp_path, "--kill-slice", "1", "--at-step", str(STEPS // 2)))

    assert code == 0, out
    assert f"resumes from step {saved[1]}, the newest checkpoint of an earlier run" in out
    assert "host 0 of slice 1 failed: its process was killed (SIGKILL) · now 1 slice · back in" in out
    assert f"step {STEPS} of {STEPS} (100 %)" in out
    wait_until_nothing_runs(tmp_path / "run")
    check_history(tmp_path / "run", first_stop=int(saved[1]))
    check_programs(tmp_path / "run")

    code, out = end(start(tmp_path))

    assert code == 0
    assert "an earlier run has completed training; --fresh restarts at step 0" in out


def check_programs(folder: Path) -> None:
    """Check that the later run loaded what the first one compiled, and that what proves it is written nowhere else."""
    logs = "".join(path.read_text() for path in (folder / "logs").iterdir())
    secret = (folder / "secret").read_text()
    job = json.loads((folder / "job.json").read_text())
    caller = Caller("", job["metadata"]["namespace"], job["metadata"]["name"], job["metadata"]["uid"])
    derived = derive_program_secret(secret, caller)
    assert "loaded a compiled program name=train" in logs
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "secret":
            assert secret.encode() not in path.read_bytes(), path
            assert derived.encode() not in path.read_bytes(), path


def check_history(folder: Path, first_stop: int) -> None:
    """Check that the committed history has every step once, and that its last step is saved and hashed."""
    status = json.loads((folder / "job.json").read_text())["status"]
    spans = [(span["first"], span.get("last", STEPS)) for span in status["lineage"]]
    assert [step for first, last in spans for step in range(first, last + 1)] == list(range(1, STEPS + 1))
    assert status["attempts"][0]["lastStep"] == first_stop
    assert status["attempts"][1]["firstStep"] == first_stop
    assert not (folder / "pods").exists()  # with the tokens
    assert list((folder / "volumes/shared/tiny/lineage-0").glob(f"{STEPS}.*/integrity.json"))


@pytest.mark.slow
def test_a_lost_slice_costs_no_more_steps_than_lie_between_snapshots(tmp_path: Path) -> None:
    write_job(tmp_path, checkpoint={**TINY["checkpoint"], "save": {"everySteps": 500}, "snapshots": {"everySteps": 10}})

    code, out = end(start(tmp_path, "--kill-slice", "1", "--at-step", str(STEPS // 2)))

    assert code == 0, out
    status = json.loads((tmp_path / "run/job.json").read_text())["status"]
    before, after = status["attempts"][:2]
    assert (after["tier"], after["slices"]) == ("ram", 1), out
    assert after["firstStep"] % 10 == 0
    # The newest snapshot may still have been in writing.
    assert before["lastStep"] - after["firstStep"] == after.get("lostSteps", 0) <= 20
    assert "from memory" in out
    spans = [(span["first"], span.get("last", STEPS)) for span in status["lineage"]]
    assert [step for first, last in spans for step in range(first, last + 1)] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_job_that_cannot_train_fails_with_the_message_of_its_host(tmp_path: Path) -> None:
    write_job(tmp_path, data={"train": [{"name": "none", "path": "python:json", "pattern": "*.nothing"}]})

    code, out = end(start(tmp_path, "--slices", "1"))

    assert code == 1
    assert "failed: " in out
    assert "spec.data.train[0]" in out


def test_accelerators_are_not_here(tmp_path: Path) -> None:
    slices = {"accelerator": "tpu-v5e", "topology": "2x2", "count": 1}
    path = write_job(tmp_path, slices=slices)

    result = CliRunner().invoke(app, ["run", str(path), "--dir", str(tmp_path / "run")])

    assert result.exit_code == 1
    assert "spec.slices.accelerator: tpu-v5e must be `cpu` for a run without a cluster" in result.stderr


def test_accelerators_are_rejected_before_folders_for_volumes_are_requested(tmp_path: Path) -> None:
    corpus = {"name": "corpus", "claimName": "corpus", "mountPath": "/corpus", "readOnly": True}
    shared = {"name": "shared", "claimName": "shared", "mountPath": "/shared"}
    slices = {"accelerator": "tpu-v5e", "topology": "2x2", "count": 1}
    path = write_job(tmp_path, slices=slices, runtime={"volumes": [corpus, shared]})

    result = CliRunner().invoke(app, ["run", str(path), "--dir", str(tmp_path / "run")])

    assert "must be `cpu` for a run without a cluster" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_number_of_slices_that_cannot_be_planned(tmp_path: Path) -> None:
    path = write_job(tmp_path, parallelism={"dcn": {"data": 2}}, slices={**TINY["slices"], "min": 2})

    result = CliRunner().invoke(app, ["run", str(path), "--dir", str(tmp_path / "run"), "--slices", "1"])

    assert result.exit_code == 1
    assert "spec.parallelism.dcn: the degrees multiply to 2 (data=2), but must fill 1 slice" in result.stderr


def test_run_reports_that_it_needs_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run.sys, "platform", "darwin")

    result = CliRunner().invoke(app, ["run", str(write_job(tmp_path)), "--dir", str(tmp_path / "run")])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: `trainingjob run` needs Linux")
    assert not (tmp_path / "run").exists()


def test_a_fault_needs_both_its_options(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(write_job(tmp_path)), "--kill-slice", "1"])

    assert result.exit_code == 2
    assert "--kill-slice and --at-step must be given equally often" in result.stderr


FAULTS = {
    "a slice that the run does not have": (("2", "5"), "--kill-slice: 2 must be less than 2, the number of slices"),
    "a step after the end": (("1", str(STEPS)), f"--at-step: {STEPS} must be less than {STEPS}, the number of steps"),
}


@pytest.mark.parametrize(("fault", "want"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_that_would_never_happen_is_rejected(fault: tuple[str, str], want: str, tmp_path: Path) -> None:
    args = ["run", str(write_job(tmp_path)), "--dir", str(tmp_path / "run")]

    result = CliRunner().invoke(app, [*args, "--kill-slice", fault[0], "--at-step", fault[1]])

    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {want}")


@pytest.mark.slow
def test_a_run_knows_the_presets_and_pod_profiles_of_a_cluster(tmp_path: Path) -> None:
    model = {"vocabSize": 257, "embedDim": 16, "mlpDim": 32, "numLayers": 1, "numHeads": 2, "numKvHeads": 2}
    (tmp_path / "presets.yaml").write_text(yaml.safe_dump({"team-tiny": {"model": model, "context": 64}}))
    (tmp_path / "profiles.yaml").write_text("team: {source: https://wiki.example}\n")
    job = yaml.safe_load(write_job(tmp_path, scheduling={"podProfile": "team"}).read_text())
    job["spec"] |= {"model": {"preset": "team-tiny"}, "training": {**TINY["training"], "steps": 2}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(job))
    tables = ("--presets", str(tmp_path / "presets.yaml"), "--pod-profiles", str(tmp_path / "profiles.yaml"))

    code, out = end(start(tmp_path, "--slices", "1", *tables))

    assert code == 0, out
    assert "step 2 of 2 (100 %)" in out
