"""Files in the working directory replace no module of the trainer: it may hold any files of the user."""

import re
import subprocess
from pathlib import Path

import pytest

from trainingjob_agent.program_process import LAUNCHER
from trainingjob_agent.supervisor import TRAINER

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("trainer", "operator") for path in (ROOT / folder).rglob("*.py")]
START = re.compile(r'(\S+), "-m", ')


@pytest.mark.parametrize("command", [TRAINER, LAUNCHER], ids=["trainer", "program launcher"])
def test_a_program_imports_no_file_of_the_working_directory(command: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("random", "pydantic", "jax"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user was imported')")

    result = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )

    assert "a file of the user" not in result.stderr


def test_all_programs_are_started_without_the_working_directory() -> None:
    starts = [(path.relative_to(ROOT).as_posix(), word) for path in SOURCES for word in START.findall(path.read_text())]

    assert len(starts) > 9
    assert {path for path, word in starts if not word.endswith('"-P"')} == set()
