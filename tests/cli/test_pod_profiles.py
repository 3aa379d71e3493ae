"""Commands with the pod profiles of a file."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app

READ_A_JOB = frozenset(("file", "files", "job"))
"""Parameters of commands that name the file of a job."""
JOB = Path(__file__).parents[2] / "crds/examples/h100-2-nodes.yaml"


def options_of(command: Any) -> set[str]:
    return {parameter.name for parameter in command.params}


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.yaml"
    path.write_text("fast: {from: gke-a3-mega, accelerators: [nvidia-h100], network: 2e9}")
    return path


def call(command: str, profiles: Path, *options: str) -> str:
    arguments = [command, str(JOB), "--pod-profiles", str(profiles), *options]
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def test_the_plan_names_the_profile_and_uses_its_network(profiles: Path) -> None:
    planned = json.loads(call("plan", profiles, "--json"))["slice"]

    assert "pod profile: fast" in call("plan", profiles)
    assert (planned["profile"], planned["rates"]["network"]) == ("fast", 2e9)


def test_the_pods_have_what_the_profile_adds(profiles: Path) -> None:
    assert "name: tcpxo-daemon" in call("render", profiles)


COMMANDS = {
    name: command
    for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
    if READ_A_JOB & options_of(command)
}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_that_validates_a_job_reads_the_tables_of_the_chart(name: str) -> None:
    """The message about an unknown profile or preset names these options."""
    assert sorted({"presets", "pod_profiles"} - options_of(COMMANDS[name])) == []
