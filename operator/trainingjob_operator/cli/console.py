"""The console for what moves on a terminal: live lines, bars and the spinner."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from trainingjob_operator.cli.printing import escape_controls


class SafeConsole(Console):
    """A rich console that escapes the control characters of text. Its own, for colours and live lines, stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Go on without an output: the exit code is still asked for."""
        self.quiet = True
