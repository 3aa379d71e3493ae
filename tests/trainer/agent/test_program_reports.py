"""Steps of a program: what its reports and the lines of its log mean."""

import re

import pytest

from trainingjob_agent.program_reports import ProgramReports, read_line
from trainingjob_agent.trainer_protocol import AgentEvent, ProgramReport
from trainingjob_api.protocol import Progress

MAXTEXT = r"completed step: (?P<step>\d+), .*loss: (?P<loss>[^,]+)|Saved a checkpoint at step (?P<saved>\d+)"
LINES = {
    "MaxText": (
        MAXTEXT,
        "completed step: 12, seconds: 0.373, TFLOP/s/device: 0.002, total_weights: 256, loss: 6.641, lm_loss: 6.641",
        ProgramReport(step=12, loss=6.641),
    ),
    "a save of MaxText": (MAXTEXT, "checkpointing.py:598] Saved a checkpoint at step 40.", ProgramReport(saved=40)),
    "a loss that is not finite": (MAXTEXT, "completed step: 12, loss: nan", ProgramReport(step=12)),
    "a loss that is no number": (MAXTEXT, "completed step: 12, loss: high", ProgramReport(step=12)),
    "another line": (MAXTEXT, "compiling", None),
    "bytes that are no text": (MAXTEXT, b"\xff\xfe completed step: 3, loss: 1", ProgramReport(step=3, loss=1.0)),
    "a number with separators": (r"step (?P<step>[0-9,_]+)", "step 1,200", ProgramReport(step=1200)),
    "a number that is none": (r"step (?P<step>\S+)", "step one", None),
    "a number that is too large": (r"step (?P<step>\d+)", "step " + "9" * 13, None),
    "more digits than a number has": (r"step (?P<step>\d+)", "step " + "9" * 400, None),
    "a saved step": (r"saved (?P<saved>\d+)", "saved 100", ProgramReport(saved=100)),
    "the end of a long line": (r"step (?P<step>\d+)", "x" * 512 + "step 3", None),
}


@pytest.mark.parametrize(("pattern", "line", "report"), LINES.values(), ids=LINES.keys())
def test_a_line_of_a_log(pattern: str, line: str | bytes, report: ProgramReport | None) -> None:
    assert read_line(re.compile(pattern), line if isinstance(line, bytes) else line.encode()) == report


def test_steps_have_their_times() -> None:
    reports = ProgramReports()
    events = [reports.translate(ProgramReport(step=step), now) for step, now in ((1, 10), (2, 12), (2, 13), (6, 16))]

    assert [event.progress and event.progress.step_seconds for event in events] == [None, 2, None, 1]
    assert events[0] == AgentEvent(progress=Progress(step=1), restored=0)


def test_a_typical_step_needs_some_steps() -> None:
    reports = ProgramReports()
    events = [reports.translate(ProgramReport(step=step, loss=1.0), 2.0 * step) for step in range(1, 8)]

    assert [event.progress and event.progress.typical_seconds for event in events] == [*([None] * 5), 2, 2]


@pytest.mark.parametrize(
    ("saved", "first", "restored"), [(0, 1, 0), (0, 200, 0), (180, 181, 180), (180, 190, 180), (180, 161, 160)]
)
def test_only_a_saved_step_counts_as_restored(saved: int, first: int, restored: int) -> None:
    reports = ProgramReports(saved)

    assert reports.translate(ProgramReport(step=first), 0.0).restored == restored
    assert reports.translate(ProgramReport(step=first + 1), 1.0).restored is None


def test_a_saved_step_is_committed() -> None:
    assert ProgramReports().translate(ProgramReport(saved=100), 0.0) == AgentEvent(committed=100)


def test_a_program_that_polls_has_no_step() -> None:
    assert ProgramReports().translate(ProgramReport(polls=True), 0.0) == AgentEvent()
