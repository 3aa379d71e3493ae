"""The log level changes while the process runs, when its file does."""

import asyncio
import logging
from pathlib import Path

import pytest

from trainingjob_operator.shell import log_level
from trainingjob_operator.shell.log_level import following_log_level
from trainingjob_operator.shell.logging_setup import ROOT, Log

PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch):
    """Read files often, and restore the level."""
    monkeypatch.setattr(log_level, "REFRESH_SECONDS", 0.01)
    before = logging.getLogger(ROOT).level
    logging.getLogger(ROOT).setLevel(logging.INFO)
    yield
    logging.getLogger(ROOT).setLevel(before)


async def until_level(wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while logging.getLogger(ROOT).level != wanted:  # noqa: ASYNC110  # a level has no event
            await asyncio.sleep(0.01)


async def test_level_of_the_file_is_in_use_at_once_and_after_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "level"
    path.write_text("warning\n")

    async with following_log_level(path):
        assert logging.getLogger(ROOT).level == logging.WARNING
        path.write_text("Debug\n")
        await until_level(logging.DEBUG)
        Log("test").debug("seen")
    assert "seen" in caplog.messages

    path.write_text("error")
    await asyncio.sleep(0.05)
    assert logging.getLogger(ROOT).level == logging.DEBUG, "nothing follows the file any more"


@pytest.mark.parametrize("content", ["loud", "", None, b"\xff"], ids=str)
async def test_invalid_and_missing_files_keep_the_level_and_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | bytes | None
) -> None:
    path = tmp_path / "level"
    path.write_text("warning")
    async with following_log_level(path):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "ignoring an invalid log level" not in caplog.messages:  # noqa: ASYNC110  # a log has no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    assert logging.getLogger(ROOT).level == logging.WARNING
    assert caplog.messages.count("ignoring an invalid log level") == 1


async def test_without_a_file_the_level_stays() -> None:
    async with following_log_level(None):
        assert logging.getLogger(ROOT).level == logging.INFO
