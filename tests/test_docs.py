"""What the documentation names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/troubleshooting.md"
FAULTS = ROOT / "docs/faults.md"
GUIDES = tuple(sorted((ROOT / "docs").glob("adding-*.md")))
TEST = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)(?:::(\w+))?`")
PRODUCERS = sorted({found for page in (PAGE, FAULTS, *GUIDES) for found in TEST.findall(page.read_text())})


@pytest.mark.parametrize(("path", "name"), PRODUCERS, ids=[name or path for path, name in PRODUCERS])
def test_each_situation_is_produced_by_a_test_that_there_is(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists()


def test_each_situation_names_what_produces_it() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what |")]

    assert len(rows) >= 25
    assert all(re.search(r"`(tests|e2e)/[^`]+` \|$", row) for row in rows)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_name_files_that_there_are_and_the_index_links_them(page: Path) -> None:
    files = re.findall(r"`((?:crds|operator|trainer|tests)/[\w./-]*)`", page.read_text())

    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert f"({page.name})" in (ROOT / "docs/index.md").read_text()
