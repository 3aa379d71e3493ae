"""The pages below docs/getting-started: jobs plan without a warning, manifests are valid, and commands exist."""

import re
import shlex
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from tests.cli.test_weights import trainingjob
from trainingjob_operator.cli.app import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/getting-started"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
PATHS = [name for name in PAGES if name != "index"]
FILE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = frozenset(("chmod", "curl", "echo", "export", "gcloud", "kind", "kubectl", "mkdir", "sh", "ssh", "sudo"))
"""Programs that need a cluster, a cloud or another machine. pip is none: `make` has installed the command line."""


def files_of(page: str) -> dict[str, str]:
    """Return the files of a page by name."""
    return dict(FILE.findall(PAGES[page]))


def documents_of(page: str, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(files_of(page)[name]))


def commands_of(page: str) -> Iterator[list[str]]:
    """Yield the words of each command of a page, without the variables that it begins with."""
    for block in SHELL.findall(PAGES[page]):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [0, *(place + 1 for place, word in enumerate(words) if word in ("&&", "|")), len(words) + 1]
            for start, stop in pairwise(starts):
                yield [*dropwhile(lambda word: re.match(r"[A-Z0-9_]+=", word), words[start : stop - 1])]


def write_files(page: str, folder: Path) -> None:
    for name, text in files_of(page).items():
        (folder / name).write_text(text)


def test_each_path_is_in_the_index() -> None:
    assert set(re.findall(r"\]\((\S+)\.md\)", PAGES["index"])) == set(PATHS)


@pytest.mark.parametrize("page", PATHS)
def test_the_job_of_a_page_plans_without_a_warning(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)

    done = trainingjob("plan", "job.yaml", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout


@pytest.mark.parametrize("page", PATHS)
def test_the_manifests_of_a_page_are_valid(page: str) -> None:
    for manifest in documents_of(page, "storage.yaml"):
        kubernetes_validate.validate(manifest, desired_version="1.36", strict=True)


@pytest.mark.parametrize("page", PATHS)
def test_the_job_of_a_page_mounts_its_claim(page: str) -> None:
    (job,) = documents_of(page, "job.yaml")
    claims = {one["metadata"]["name"] for one in documents_of(page, "storage.yaml") if "Claim" in one["kind"]}

    assert {volume["claimName"] for volume in job["spec"]["runtime"]["volumes"]} == claims


@pytest.mark.parametrize("page", PATHS)
def test_the_commands_of_a_page_name_what_there_is(page: str) -> None:
    for words in commands_of(page):
        check_command(words, page)


@pytest.mark.parametrize("page", PATHS)
def test_a_page_uses_the_environment_that_its_make_has_filled(page: str) -> None:
    """Another installation in `.venv` would replace the pinned packages and the editable one that `make` needs."""
    commands = [words[:2] for words in commands_of(page)]

    assert re.search(r"^images: install\b", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert commands.index(["make", "images"]) < commands.index([".", ".venv/bin/activate"])


def check_command(words: list[str], page: str) -> None:
    match words:
        case [".", path]:
            assert path == ".venv/bin/activate"
        case ["make", target, *settings]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), words
            assert all(f"$({setting.partition('=')[0]})" in makefile for setting in settings), words
        case ["trainingjob", verb, *options]:
            command = get_command(app).commands[verb]  # type: ignore[attr-defined]
            command.make_context(verb, options)
        case ["helm", "install", _, "charts/trainingjob", *options]:
            check_values([options[place + 1] for place, word in enumerate(options) if word == "--set"])
        case ["helm", *_]:
            pass
        case ["kubectl", "apply", *_, "-f", file]:
            assert file in files_of(page) or file.startswith("https://"), words
        case [program, *_]:
            assert program in ELSEWHERE, words


def check_values(settings: list[str]) -> None:
    """Check that the chart has the values that a command sets."""
    for setting in settings:
        values: Any = yaml.safe_load((ROOT / "charts/trainingjob/values.yaml").read_text())
        for part in setting.partition("=")[0].split("."):
            assert part in values, setting
            values = values[part]


@pytest.mark.slow
def test_the_model_of_the_first_page_writes_text(tmp_path: Path) -> None:
    write_files("kind", tmp_path)
    job = (tmp_path / "job.yaml").read_text().replace("steps: 200", "steps: 4").replace("max: 2", "max: 1")
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "shared").mkdir()

    trained = trainingjob("run", "job.yaml", "--dir", "run", "--volume", "shared=shared", cwd=tmp_path)
    (sample,) = [words for words in commands_of("kind") if words[:2] == ["trainingjob", "sample"]]
    sampled = trainingjob(*sample[1:], cwd=tmp_path)

    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert sampled.returncode == 0, sampled.stdout + sampled.stderr
    assert sampled.stdout
