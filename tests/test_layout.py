"""The shape of the repository, held by tests: what a new file or field may not quietly break."""

import operator
import re
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT_FOLDERS = ("operator", "trainer", "crds", "tests", "e2e", "tools")
MAX_LINES = 400


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def test_the_standard_library_s_operator_is_not_shadowed() -> None:
    assert Path(operator.__file__ or "").is_relative_to(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("folder", PROJECT_FOLDERS)
def test_project_folders_are_not_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_tests_are_not_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_api_s_folder_imports_nothing_of_the_packages_above_it() -> None:
    imports = re.compile(r"^\s*(?:from|import) trainingjob_(?:operator|agent|trainer)\b", re.MULTILINE)

    importing = [path for path in tracked("crds/trainingjob_api/*.py") if imports.search(path.read_text())]
    assert importing == []


def test_no_file_grows_past_the_limit() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in tracked("*.py") if (lines := count_lines(path)) > MAX_LINES}

    assert long == {}


PACKAGES = (
    "crds/trainingjob_api",
    "operator/trainingjob_operator",
    "trainer/trainingjob_agent",
    "trainer/trainingjob_program",
    "trainer/trainingjob_trainer",
)
SHORT_LINES, MAX_SHORT = 30, 20
SECTIONS = ROOT / "crds/trainingjob_api/spec"
"""Each section of the spec has a module, however short."""
TRAINER_MODULES = {"__init__", "context", "entrypoint", "loop", "main", "state", "step"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_opens_one_file_of_a_package(package: str) -> None:
    names = Counter(path.name for path in tracked(f"{package}/*.py"))
    repeated = {name for name, count in names.items() if count > 1}

    assert repeated <= {"__init__.py", "__main__.py", "registry.py"}  # the registry of a package collects its families


def test_few_files_are_pieces_of_a_concept() -> None:
    code = (path for folder in PROJECT_FOLDERS if folder != "tests" for path in tracked(f"{folder}/*.py"))
    short = {
        str(path.relative_to(ROOT))
        for path in code
        if path.stem != "__init__" and path.parent != SECTIONS and count_lines(path) < SHORT_LINES
    }

    assert len(short) <= MAX_SHORT, sorted(short)


def test_the_trainer_has_folders_and_the_modules_of_a_run() -> None:
    assert {path.stem for path in (ROOT / "trainer/trainingjob_trainer").glob("*.py")} == TRAINER_MODULES


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_locks_carry_hashes_and_no_addresses() -> None:
    locks = tracked("*.lock")

    assert len(locks) >= 7
    for lock in locks:
        text = lock.read_text()

        assert "--hash=sha256:" in text
        assert "://" not in text


def test_locks_are_installed_without_resolution() -> None:
    files = [ROOT / "Makefile", *ROOT.glob("*/Containerfile")]
    installs = [line for file in files for line in file.read_text().splitlines() if "--require-hashes" in line]

    assert len(installs) == 5  # the Makefile, and the backend and the packages of each image
    assert [line for line in installs if "--no-deps" not in line] == []


def test_every_make_target_is_phony() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    targets = {line.split(":")[0] for line in lines if ":" in line and "##" in line and line[0].islower()}
    phony = {name for line in lines if line.startswith(".PHONY:") for name in line.split()[1:]}

    assert targets == phony
