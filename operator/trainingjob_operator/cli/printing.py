"""Output of commands, safe for terminals and pipes.

Names, messages and logs come from clusters and files that other people write. Their control characters could move the
cursor, clear the screen or fill the clipboard. Each control character is therefore printed as its escape.
"""

import io
import os
import re
import sys
from collections.abc import Sequence

import typer

from trainingjob_operator.cli.errors import UsageError

_COLOURS = re.compile(r"(?:\x1b\[|\x9b)[0-9;:]*m")
"""Colour codes. They carry no information and are removed."""
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u2028\u2029\ud800-\udfff]"  # Unicode line separators; lone surrogates, which cannot be encoded
)


def escape_controls(text: str) -> str:
    r"""Return text without colour codes; every other control character becomes its escape, such as `\x1b`."""
    return _CONTROLS.sub(lambda match: _escape(ord(match[0])), _COLOURS.sub("", text))


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to standard output or standard error, with control characters escaped."""
    typer.echo(escape_controls(text), err=err, nl=nl)


class PipeSafeStream(io.TextIOWrapper):
    """Standard output or standard error that discards its output after the reader closed the pipe, as `head` does."""

    reader_has_left = False

    def write(self, text: str) -> int:
        """Write text, or discard it if the reader has closed the pipe."""
        try:
            return super().write(text)
        except OSError as error:
            self._discard_output(error)
            return len(text)

    def flush(self) -> None:
        """Flush the buffer, or discard it if the reader has closed the pipe."""
        try:
            super().flush()
        except OSError as error:
            self._discard_output(error)

    def _discard_output(self, error: OSError) -> None:
        """Redirect all further output to the null device.

        Raises:
            UsageError: writing failed for another reason than a closed pipe, such as a full disk.
        """
        with open(os.devnull, "wb") as null_device:  # noqa: PTH123  # a descriptor, not a path
            os.dup2(null_device.fileno(), self.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"Cannot write the output: {error.strerror}.") from error
        self.reader_has_left = True


def is_pipe_closed() -> bool:
    """Return whether the reader of standard output has closed the pipe."""
    return bool(getattr(sys.stdout, "reader_has_left", False))


def install_pipe_safe_streams() -> None:
    """Replace standard output and standard error with `PipeSafeStream`s.

    Characters that the terminal's encoding lacks are printed as escapes.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # None if the parent process closed it
            pipe_safe = PipeSafeStream(
                stream.buffer,
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
            )
            setattr(sys, name, pipe_safe)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


GAP = "  "


def align(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return one line per row. The first row holds the headings; columns in `right` are right-aligned."""
    if not rows:
        return []
    rows = [[escape_controls(cell) for cell in row] for row in rows]  # escaping changes the width
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_join(row, widths, right) for row in rows]


def _join(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = (
        text.rjust(width) if column in right else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return GAP.join(cells).rstrip()
