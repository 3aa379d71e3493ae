"""What commands print, made safe for a terminal and for a pipe.

Names, messages and logs come from clusters and files, where others write. Their control characters could move the
cursor, clear the screen or fill the clipboard, so a terminal never gets them: each is printed as its escape.
"""

import io
import os
import re
import sys

import typer

from trainingjob_operator.cli.errors import UsageError

_COLOURS = re.compile(r"(?:\x1b\[|\x9b)[0-9;:]*m")
"""What only changes colours says nothing: it is left out."""
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the order in which text is read
    "\u2028\u2029\ud800-\udfff]"  # line ends of their own; halves of a character, which cannot be written
)


def escape_controls(text: str) -> str:
    r"""Return text without colours, and with every other control character as its escape, such as `\x1b`."""
    return _CONTROLS.sub(lambda match: _escape(ord(match[0])), _COLOURS.sub("", text))


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to standard output or standard error, control characters escaped."""
    typer.echo(escape_controls(text), err=err, nl=nl)


class PatientStream(io.TextIOWrapper):
    """Standard output or standard error whose reader may go away, as `head` does, without ending the command."""

    reader_has_left = False

    def write(self, text: str) -> int:
        """Write text; where nobody reads it any more, to nowhere."""
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Send what was written."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Send all that follows to nowhere.

        Raises:
            UsageError: the reader is there, but takes nothing, such as a full disk.
        """
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  # a descriptor, not a path
            os.dup2(nowhere.fileno(), self.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"Cannot write the output: {error.strerror}.") from error
        self.reader_has_left = True


def reader_has_left() -> bool:
    """Return whether nobody reads standard output any more."""
    return bool(getattr(sys.stdout, "reader_has_left", False))


def use_patient_streams() -> None:
    """Let the process print to `PatientStream`s. What the terminal's encoding lacks is printed as its escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # None: it was closed by who started the command
            patient = PatientStream(
                stream.buffer,
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
            )
            setattr(sys, name, patient)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
