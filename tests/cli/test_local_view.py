"""The output of a local run: progress and events."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.builders import make_report
from trainingjob_api.data_report import DataReport, SourceReport
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.local.operator_log import capture_operator_log
from trainingjob_operator.cli.local.run import INTERRUPTED, print_result
from trainingjob_operator.cli.local.run_events import (
    RunProgress,
    describe_event,
    describe_status_change,
    read_run_progress,
)
from trainingjob_operator.cli.local.view import LiveView, PlainView, choose_view, format_steps
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.core.observe.heartbeats import HeartbeatState, LatestReport
from trainingjob_operator.core.report.job_events import JobEvent
from trainingjob_operator.shell.logging_setup import Log

START = "2026-11-21T12:00:00Z"
WORLD = {"generation": 2, "slices": [0, 1], "coordinator": "h:1", "members": "x", "since": START}
FAST = Progress(step=7, loss=2.5, tokens_per_second=41_000.0)
LATER = Progress(step=8)


def make_status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate(fields)


def receive(*reports: Any) -> HeartbeatState:
    return HeartbeatState({str(number): LatestReport(report, 0.1, 0.1) for number, report in enumerate(reports)})


STATUS = make_status(phase="Recovering", world=WORLD, progress={"step": 5, "of": 100})
TRAINING = {"generation": 2, "phase": Phase.TRAINING}
SNAPSHOTS = {
    "before the first world": (make_status(phase="Starting"), receive(), RunProgress(0, 0, "starting")),
    "no host has reported the world yet": (STATUS, receive(make_report(generation=1)), RunProgress(5, 2, "recovering")),
    "the slowest host counts": (
        STATUS,
        receive(make_report(generation=2, phase=Phase.COMPILING), make_report(generation=2, phase=Phase.RESTORING)),
        RunProgress(5, 2, "restoring"),
    ),
    "training without a step yet": (STATUS, receive(make_report(**TRAINING)), RunProgress(5, 2, "training")),
    "training": (
        STATUS,
        receive(make_report(**TRAINING, progress=FAST), make_report(**TRAINING, progress=LATER)),
        RunProgress(8, 2, "", is_training=True, progress=LATER),
    ),
    "the hosts have counted the steps of the epochs": (
        STATUS,
        receive(make_report(**TRAINING, total_steps=40)),
        RunProgress(5, 2, "training", total_steps=40),
    ),
    "saving is a part of training": (
        STATUS,
        receive(make_report(generation=2, phase=Phase.SAVING, progress=FAST)),
        RunProgress(7, 2, "saving", is_training=True, progress=FAST),
    ),
}


@pytest.mark.parametrize(("status", "hearing", "want"), SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
def test_snapshots(status: TrainingJobStatus, hearing: HeartbeatState, want: RunProgress) -> None:
    assert read_run_progress(status, hearing) == want


def make_attempt(generation: int, slices: int, **fields: Any) -> dict[str, Any]:
    return {"generation": generation, "slices": slices, "started": START, **fields}


LOST = make_attempt(1, 2, ended=START, cause={"reason": "PodFailed", "message": "slice 1 was lost\nlong story"})
JOINING = make_attempt(2, 1)
BACK = make_attempt(2, 1, recoverySeconds=1.1, lostSteps=0)


def test_data_report_is_printed_once_and_its_warnings_as_events() -> None:
    source = SourceReport(name="text", files=1, documents=1, characters=64, tokens=65, rows=4, epochs=6.0)
    read = TrainingJobStatus(
        data=DataReport(tokens=65, rows=4, epochs=6.0, sources=(source,), warnings=("4 rows of text",))
    )

    assert describe_status_change(TrainingJobStatus(), read) == [
        "text 65 tokens   4 rows   6.00 epochs",
        "  text  1 file  1 document  64 characters  65 tokens  4 rows  6.00 epochs",
    ]
    assert describe_status_change(read, read) == []


def test_a_data_set_of_the_hub_has_its_commit() -> None:
    source = SourceReport(name="text", files=1, documents=1, characters=64, tokens=65, rows=4, epochs=6.0)
    pinned = source.model_copy(update={"commit": "0123456789abcdef0123456789abcdef01234567"})
    read = TrainingJobStatus(data=DataReport(tokens=65, rows=4, epochs=6.0, sources=(pinned,)))

    assert describe_status_change(TrainingJobStatus(), read)[1].endswith("6.00 epochs  commit 0123456789ab")


def test_recovery_is_printed_once_with_its_cost() -> None:
    lost, joining, back = (make_status(attempts=[LOST, *more]) for more in ([], [JOINING], [BACK]))

    assert describe_status_change(lost, joining) == []
    assert describe_status_change(joining, back) == ["slice 1 was lost · now 1 slice · back in 1.1 s · 0 steps lost"]
    assert describe_status_change(back, back) == []


HAPPENINGS = {
    "what a recovery will tell": (
        make_status(attempts=[LOST, JOINING]),
        "PodFailed",
        "slice 1 was lost\nlong story",
        "",
    ),
    "a loss without a next world": (make_status(attempts=[LOST]), "PodFailed", "slice 1 was lost", "slice 1 was lost"),
    "a world that was formed": (make_status(), "Formed", "generation 1 trains on slice 0", ""),
    "the verdict": (make_status(completionTime=START), "Crash", "the data is bad", ""),
    "anything else": (make_status(), "CreationRejected", "no quota", "no quota"),
}


@pytest.mark.parametrize(("status", "reason", "message", "want"), HAPPENINGS.values(), ids=HAPPENINGS.keys())
def test_happenings(status: TrainingJobStatus, reason: str, message: str, want: str) -> None:
    assert describe_event(JobEvent(reason=reason, message=message), status) == want


TRAINS = RunProgress(7, 2, "", is_training=True, progress=FAST)
SAVES = RunProgress(7, 2, "saving", is_training=True, progress=FAST)
SHRUNK = RunProgress(7, 1, "recovering", progress=FAST)


def print_plain(act: Callable[[PlainView], None]) -> list[str]:
    out = io.StringIO()
    with PlainView(Console(file=out), 100) as view:
        act(view)
    return out.getvalue().splitlines()


def test_plain_lines_come_in_intervals_and_when_the_activity_changes() -> None:
    def act(view: PlainView) -> None:
        for seconds, snapshot in ((0.0, TRAINS), (5.0, SAVES), (9.0, TRAINS), (10.0, TRAINS), (11.0, SHRUNK)):
            view.show_progress(snapshot, seconds)

    assert print_plain(act) == [
        "step 7/100  loss 2.500  41 k tokens/s  2 slices  0:00:00",
        "step 7/100  loss 2.500  41 k tokens/s  2 slices  0:00:10",
        "step 7/100  recovering  loss 2.500  1 slice  0:00:11",
    ]


def test_steps_of_epochs_are_those_that_the_hosts_counted() -> None:
    assert format_steps(TRAINS, 100) == "step 7/100"
    assert format_steps(TRAINS, None) == "step 7/?"
    assert format_steps(replace(TRAINS, total_steps=40), None) == "step 7/40"


def test_plain_lines_are_not_wrapped_and_not_read_as_markup() -> None:
    assert print_plain(lambda view: view.print_line("[bold]" + "x" * 300)) == ["[bold]" + "x" * 300]


def test_terminal_shows_a_live_line_below_the_log() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with choose_view(console, 100) as view:
        assert isinstance(view, LiveView)
        view.show_progress(TRAINS, 72.0)
        view.print_line("12:04:31  slice 1 was lost")

    assert "step 7/100" in out.getvalue()
    assert "41 k tokens/s" in out.getvalue()
    assert "0:01:12" in out.getvalue()
    assert "slice 1 was lost" in out.getvalue()


def test_pipe_receives_plain_lines() -> None:
    assert isinstance(choose_view(Console(file=io.StringIO()), 100), PlainView)


def test_an_error_of_the_operator_is_shown_once_and_written_down(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    out = io.StringIO()
    log = Log("scheduler")
    with workspace.locked(), PlainView(Console(file=out), 100) as view, capture_operator_log(workspace, view):
        for _ in range(2):
            try:
                raise ValueError("bad")
            except ValueError:
                log.exception("reconcile failed", job="demo")
        log.info("looked")
    log.error("later")

    written = (tmp_path / "logs/operator.log").read_text()
    assert out.getvalue() == f"internal error: reconcile failed: ValueError: bad; see {tmp_path}/logs/operator.log\n"
    assert written.count("reconcile failed job=demo\nTraceback") == 2
    assert "scheduler: looked" in written
    assert "later" not in written


def test_result_of_a_run_has_its_speed_and_no_rest(tmp_path: Path) -> None:
    progress = {"step": 10, "of": 100, "percent": 10.0, "tokensPerSecond": 1e6, "etaSeconds": 90}
    console = SafeConsole(file=io.StringIO(), width=200)

    code = print_result({"status": {"phase": "Running", "progress": progress}}, "/c", Workspace(tmp_path), console)

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[0] == "step 10 of 100 (10 %)   1 M tokens/s"
    assert code == INTERRUPTED
