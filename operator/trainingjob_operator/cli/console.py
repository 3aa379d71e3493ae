"""The rich console for live lines, progress bars and spinners."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from trainingjob_operator.cli.printing import escape_controls


class SafeConsole(Console):
    """A rich console that escapes control characters in text. Rich's own control segments pass unchanged."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with the control characters of its text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Stop printing but let the command continue, because its exit code still matters."""
        self.quiet = True
