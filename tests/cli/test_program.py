"""`trainingjob run` with programs: they lose a process, restart at another size, and resume from a saved step."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METRICS = "volumes/shared/entrypoint/metrics/metrics.jsonl"
STEP = re.compile(r"\[world (\d)\] completed step: (\d+), loss: (\S+)")
MAIN = "import sys; from trainingjob_operator.cli.entry_point import main; sys.argv[0] = 'trainingjob'; main()"


def run_example(name: str, folder: Path, at_step: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run an example that loses slice 1 at a step; return the command and the log of slice 0."""
    job, code = ROOT / f"crds/examples/{name}.yaml", f"code={ROOT}/crds/examples"
    options = ("--dir", str(folder), "--volume", code, "--kill-slice", "1", "--at-step", str(at_step))
    command = [sys.executable, "-c", MAIN, "run", str(job), *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "host 0 of slice 1 failed: its process was killed (SIGKILL)" in run.stdout
    return run, (folder / "logs/slice-0-host-0.log").read_text()


@pytest.mark.slow
def test_a_program_loses_a_slice_and_resumes_from_its_saved_step(tmp_path: Path) -> None:
    run, log = run_example("program", tmp_path, 100)

    assert "step 400 of 400 (100 %)" in run.stdout
    assert "process 0 of 2 resumes from step 0\n" in log
    *_, resumed = (line for line in log.splitlines() if "process 0 of 1 resumes from step" in line)
    assert int(resumed.rpartition(" ")[2]) >= 60
    assert "completed step: 400, loss: 0.0" in log


@pytest.mark.slow
def test_a_program_of_flax_and_orbax_repeats_the_losses_of_lost_steps(tmp_path: Path) -> None:
    run, log = run_example("flax-program", tmp_path, 110)
    before, after = ({step: loss for world, step, loss in STEP.findall(log) if world == one} for one in ("1", "2"))
    repeated = before.keys() & after.keys()

    *_, resumed = (int(line.rpartition(" ")[2]) for line in log.splitlines() if "process 0 of 1 resumes from" in line)

    assert "step 300 of 300 (100 %)" in run.stdout
    assert resumed >= 100
    assert resumed % 20 == 0
    assert sorted(map(int, after)) == list(range(resumed + 1, 301))
    assert sorted(map(int, before)) == list(range(1, len(before) + 1))
    expected = [float(before[step]) for step in repeated]
    assert [float(after[step]) for step in repeated] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_trainer_with_another_loss_loses_a_slice_and_resumes(tmp_path: Path) -> None:
    run, _ = run_example("entrypoint", tmp_path, 60)
    curve = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]

    assert "step 200 of 200 (100 %)" in run.stdout
    assert "back in " in run.stdout
    assert " from memory, " in run.stdout
    assert {line["generation"] for line in curve} == {1, 2}
    assert curve[-1]["loss"] < curve[0]["loss"] - 1
