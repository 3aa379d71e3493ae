"""`trainingjob run` with a program: it loses a process, restarts at another size, and resumes from its saved step."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from trainingjob_operator.cli.entry_point import main; sys.argv[0] = 'trainingjob'; main()"


@pytest.mark.slow
def test_a_program_loses_a_slice_and_resumes_from_its_saved_step(tmp_path: Path) -> None:
    options = (
        "--dir",
        str(tmp_path),
        "--volume",
        f"code={ROOT}/crds/examples",
        "--kill-slice",
        "1",
        "--at-step",
        "100",
    )
    command = [sys.executable, "-c", MAIN, "run", str(ROOT / "crds/examples/program.yaml"), *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    log = (tmp_path / "logs/slice-0-host-0.log").read_text()

    assert run.returncode == 0, run.stdout + run.stderr
    assert "host 0 of slice 1 failed: its process was killed (SIGKILL)" in run.stdout
    assert "step 400 of 400 (100 %)" in run.stdout
    assert "process 0 of 2 resumes from step 0\n" in log
    *_, resumed = (line for line in log.splitlines() if "process 0 of 1 resumes from step" in line)
    assert int(resumed.rpartition(" ")[2]) >= 60
    assert "completed step: 400, loss: 0.0" in log
