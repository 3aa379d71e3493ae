"""What a local run shows: a live line where there is a terminal, plain lines where there is none.

Both print the same events above; only how progress is shown differs.
"""

from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.local.narrate import Snapshot
from trainingjob_operator.core.units import plural, short

SECONDS_BETWEEN_LINES = 10.0
MAX_BAR_WIDTH = 30
WIDTH_OF_WORDS = 62
"""What the words of the live line may take; the bar gets the rest of a narrow terminal."""


class View(Protocol):
    """Shows a run to whoever started it."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def say(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Show how far the run is; `seconds` have passed since it began."""
        ...


class LiveView:
    """One line at the bottom of a terminal that is drawn again and again."""

    def __init__(self, console: SafeConsole, num_steps: int) -> None:
        """Show on a terminal."""
        self._num_steps = num_steps
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line away."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Draw the line anew."""
        row = Table.grid(padding=(0, 1))
        width = max(min(MAX_BAR_WIDTH, self._console.width - WIDTH_OF_WORDS), 1)
        bar = ProgressBar(total=self._num_steps, completed=snapshot.step, width=width)
        words = (count_steps(snapshot, self._num_steps), describe(snapshot), clock(seconds))
        step, now, time = (Text(word, no_wrap=True, overflow="ellipsis") for word in words)
        row.add_row(step, bar, now, time)
        self._live.update(row)


class PlainView:
    """Lines for logs and pipes: one every few seconds, and one whenever the activity changes."""

    def __init__(self, console: SafeConsole, num_steps: int) -> None:
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

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Print a line if it is time for one."""
        state = ("" if snapshot.is_training else snapshot.activity, snapshot.num_slices)
        if state == self._last and seconds < self._due:
            return
        self._last, self._due = state, seconds + SECONDS_BETWEEN_LINES
        self.say(f"{count_steps(snapshot, self._num_steps)}  {describe(snapshot)}  {clock(seconds)}")


def count_steps(snapshot: Snapshot, num_steps: int) -> str:
    """Return how far a run is; it may hold more steps than its spec asks for."""
    return f"step {snapshot.step}/{max(num_steps, snapshot.step)}"


def choose_view(console: SafeConsole, num_steps: int) -> View:
    """Return the view that fits where the output goes."""
    return LiveView(console, num_steps) if console.is_terminal else PlainView(console, num_steps)


def describe(snapshot: Snapshot) -> str:
    """Return what goes on, or the measures of the newest step."""
    parts = [snapshot.activity] if snapshot.activity else []
    if snapshot.progress and snapshot.progress.loss is not None:
        parts.append(f"loss {snapshot.progress.loss:.3f}")
    if snapshot.progress and snapshot.progress.tokens_per_second and not snapshot.activity:
        parts.append(f"{short(snapshot.progress.tokens_per_second)} tokens/s")
    if snapshot.num_slices:
        parts.append(plural(snapshot.num_slices, "slice"))
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Return a span of time as a clock shows it: `0:01:12`."""
    return str(timedelta(seconds=int(seconds)))
