"""The page about models: its commands print what it shows, and its tables name all presets."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import CliRunner
from trainingjob_api.presets.registry import PRESETS, UNSUPPORTED
from trainingjob_operator.cli.entry_point import app

PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind == "yaml"}
COMMANDS = {
    command: shown
    for kind, text in BLOCKS
    if kind == "console"
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE)
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_page_shows(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)
    program, *args = shlex.split(command)

    result = CliRunner().invoke(app, args, catch_exceptions=False)

    assert (program, result.exit_code) == ("trainingjob", 0)
    shown, printed = (re.sub(" +", " ", text.rstrip()) for text in (COMMANDS[command], result.stdout))
    assert printed == shown or (shown.endswith("...") and printed.startswith(shown.removesuffix("...").rstrip("\n")))


def test_the_page_has_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"convert", "plan", "presets", "validate"}


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


def test_the_families_have_all_presets_in_order() -> None:
    names = [name for row in rows_of("Families") for name in re.findall(r"`([^`]+)`", row[2])]

    assert sorted(names) == sorted(PRESETS)


def test_the_models_that_are_no_presets_have_what_is_missing() -> None:
    assert {row[0].strip("`"): row[1] for row in rows_of("Models that are no presets")} == UNSUPPORTED


def test_the_lines_that_are_left_out_are_those_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c4.yml").write_text(FILES["c4.yml"])
    shown = next(text for kind, text in BLOCKS if not kind and text.startswith("# Left out"))

    assert CliRunner().invoke(app, ["convert", "c4.yml"]).stdout.endswith(shown)
