"""Output of a local run: a live line on a terminal, plain lines otherwise.

Both print the same events; only the display of progress differs.
"""

from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.local.run_events import RunProgress
from trainingjob_operator.core.report.job_status import UNKNOWN_TOTAL
from trainingjob_operator.core.units import format_count, pluralize

LINE_INTERVAL_SECONDS = 10.0
MAX_BAR_WIDTH = 30
TEXT_WIDTH = 62
"""Columns reserved for the text of the live line; the bar takes the rest of a narrow terminal."""


class View(Protocol):
    """Shows a run to the user."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        ...

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        ...

    def show_progress(self, snapshot: RunProgress, seconds: float) -> None:
        """Show the progress of the run after `seconds`."""
        ...


class LiveView:
    """One line at the bottom of a terminal, redrawn in place."""

    def __init__(self, console: SafeConsole, num_steps: int | None) -> None:
        """Show on a terminal."""
        self._num_steps = num_steps
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the line."""
        self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line above the live line."""
        self._console.print(Text(text), soft_wrap=True)

    def show_progress(self, snapshot: RunProgress, seconds: float) -> None:
        """Redraw the line."""
        row = Table.grid(padding=(0, 1))
        width = max(min(MAX_BAR_WIDTH, self._console.width - TEXT_WIDTH), 1)
        bar = ProgressBar(total=self._num_steps or snapshot.total_steps, completed=snapshot.step, width=width)
        texts = (format_steps(snapshot, self._num_steps), format_activity(snapshot), format_clock(seconds))
        step, activity, clock = (Text(text, no_wrap=True, overflow="ellipsis") for text in texts)
        row.add_row(step, bar, activity, clock)
        self._live.update(row)


class PlainView:
    """Lines for logs and pipes: one every few seconds, and one whenever the activity changes."""

    def __init__(self, console: SafeConsole, num_steps: int | None) -> None:
        """Print to a file or a pipe."""
        self._console = console
        self._num_steps = num_steps
        self._last: tuple[str, int] | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore."""

    def print_line(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def show_progress(self, snapshot: RunProgress, seconds: float) -> None:
        """Print a line if one is due."""
        state = ("" if snapshot.is_training else snapshot.activity, snapshot.num_slices)
        if state == self._last and seconds < self._due:
            return
        self._last, self._due = state, seconds + LINE_INTERVAL_SECONDS
        self.print_line(
            f"{format_steps(snapshot, self._num_steps)}  {format_activity(snapshot)}  {format_clock(seconds)}"
        )


def format_steps(snapshot: RunProgress, num_steps: int | None) -> str:
    """Return the current and the total number of steps; a run may have trained more steps than its spec has.

    `num_steps` is that of the spec. None: the trainer counts the steps.
    """
    total = num_steps or snapshot.total_steps
    return f"step {snapshot.step}/{max(total, snapshot.step) if total else UNKNOWN_TOTAL}"


def choose_view(console: SafeConsole, num_steps: int | None) -> View:
    """Return the live view for a terminal, else the plain one."""
    return LiveView(console, num_steps) if console.is_terminal else PlainView(console, num_steps)


def format_activity(snapshot: RunProgress) -> str:
    """Return the activity, or the metrics of the newest step."""
    parts = [snapshot.activity] if snapshot.activity else []
    if snapshot.progress and snapshot.progress.loss is not None:
        parts.append(f"loss {snapshot.progress.loss:.3f}")
    if snapshot.progress and snapshot.progress.tokens_per_second and not snapshot.activity:
        parts.append(f"{format_count(snapshot.progress.tokens_per_second)} tokens/s")
    if snapshot.num_slices:
        parts.append(pluralize(snapshot.num_slices, "slice"))
    return "  ".join(parts)


def format_clock(seconds: float) -> str:
    """Return a duration in clock format: `0:01:12`."""
    return str(timedelta(seconds=int(seconds)))
