"""Fixtures of every folder: golden files."""

import asyncio
import difflib
import gc
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent

# The test plugins ask for the current event loop; without this the first to ask makes one that nobody closes.
asyncio.set_event_loop(None)

# The default deadline of 200 ms fails tests on a busy machine.
hypothesis.settings.register_profile("without deadline", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("without deadline")


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of garbage collections, which take a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden() -> Callable[[Path, str], None]:
    """Return a check that a text equals a golden file; `make golden` (GOLDEN=write) rewrites the file instead."""

    def check(path: Path, text: str) -> None:
        if os.environ.get("GOLDEN") == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        want = path.read_text() if path.exists() else ""
        if text == want:
            return
        lines = difflib.unified_diff(
            want.splitlines(keepends=True), text.splitlines(keepends=True), f"{name} (golden)", f"{name} (now)"
        )
        pytest.fail(f"{''.join(lines)}\n{name} differs. If the change is meant: make golden", pytrace=False)

    return check
