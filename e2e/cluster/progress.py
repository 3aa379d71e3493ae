"""Progress of long steps: a live bar on a terminal, otherwise one plain line for some of the steps."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_START = time.monotonic()
_CONSOLE = Console(stderr=True)
"""Shared console, so that lines printed during a bar appear above it."""


def print_progress(text: str) -> None:
    """Print one line with the seconds since the program started."""
    line = f"{time.monotonic() - _START:6.1f} s  {text}"
    _CONSOLE.print(line, markup=False, highlight=False, soft_wrap=True)


class Steps:
    """A known number of long, named steps."""

    def __init__(self, title: str, total: int, steps_per_line: int = 1) -> None:
        """Show steps under a title. Without a terminal, print one line for every `steps_per_line` steps."""
        self._title = title
        self._total = total
        self._steps_per_line = steps_per_line
        self._num_begun = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=_CONSOLE, transient=True)

    def __enter__(self) -> Self:
        print_progress(self._title)
        if _CONSOLE.is_terminal:
            self._progress.start()
            self._task = self._progress.add_task("", total=self._total)
        return self

    def begin(self, name: str) -> None:
        """Begin the next step; the previous one counts as completed."""
        if _CONSOLE.is_terminal:
            self._progress.update(self._task, description=name, completed=self._num_begun)
        elif self._num_begun % self._steps_per_line == 0:
            print_progress(f"[{self._num_begun + 1}/{self._total}] {name}")
        self._num_begun += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _CONSOLE.is_terminal:
            self._progress.stop()
