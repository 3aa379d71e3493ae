"""The golden fixture: it fails with a diff and advice, and rewrites files only on request."""

from collections.abc import Callable
from pathlib import Path

import pytest

type Golden = Callable[[Path, str], None]


@pytest.fixture(autouse=True)
def check_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDEN", raising=False)


def test_an_equal_text_passes(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    path.write_text("four\n")

    golden(path, "four\n")


@pytest.mark.parametrize("before", ["four\n", None], ids=["another text", "no file"])
def test_a_difference_fails_with_the_diff_and_the_command(golden: Golden, tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "plan.txt"
    if before:
        path.write_text(before)

    with pytest.raises(pytest.fail.Exception) as failure:
        golden(path, "five\n")

    assert "+five" in str(failure.value)
    assert "make golden" in str(failure.value)


def test_writing_replaces_the_file(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDEN", "write")
    path = tmp_path / "new" / "plan.txt"

    golden(path, "five\n")

    assert path.read_text() == "five\n"
