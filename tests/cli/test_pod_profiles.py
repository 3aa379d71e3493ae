"""`plan` and `render` with the pod profiles of a file."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app

JOB = Path(__file__).parents[2] / "crds/examples/h100-2-nodes.yaml"


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
