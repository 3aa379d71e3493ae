"""The commands of docs/hugging-face.md run in their order, and print what the page shows."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.test_weights import LLAMA, write_job

PAGE = Path(__file__).parents[2] / "docs/hugging-face.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "llama")
    program = tmp_path / "bin/trainingjob"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom trainingjob_operator.cli.entry_point import main\n"
        "import sys; sys.argv[0] = 'trainingjob'; main()\n"
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    section, lora = blocks("yaml")
    consoles = blocks("console")
    assert len(consoles) == 5
    for number, console in enumerate(consoles):
        command, *lines = console.splitlines()

        done = subprocess.run(
            shlex.split(command.removeprefix("$ ")),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stdout + done.stderr
        if lines:
            assert [*done.stderr.splitlines(), *done.stdout.splitlines()] == lines
        if number == 0:
            for name, sections in (("job", section), ("lora", lora)):
                write_job(tmp_path, model=yaml.safe_load(done.stdout)["model"], **yaml.safe_load(sections))
                (tmp_path / "tiny.yaml").rename(tmp_path / f"{name}.yaml")
    assert (tmp_path / "exported/model.safetensors").exists()
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"} <= files
    adapters = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert adapters == {"adapter_config.json", "adapter_model.safetensors"}
    assert (tmp_path / "merged/config.json").exists()
