"""Log lines: constant words and variable fields, so that people can read them and machines can group them.

`Log("lease").info("lease taken", holder=name)` becomes one JSON object or one line of text. Only what is passed as a
field is written: objects, tokens and certificates never are.
"""

import json
import logging
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

type Field = str | int | float | bool | None
type Format = Literal["json", "text"]

ROOT = "trainingjob"
NEEDLESS = "kopf._core.reactor.running"
"""A logger whose one warning is that signals do not reach kopf's thread: that is why it is in one."""
REQUESTS = "kopf._cogs.clients.watching"
"""A logger to which kopf tells, as errors, that a request failed: both what is tried again and what is given up."""
TRIED_AGAIN = "failed; will retry"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "text")


class Log:
    """Writes lines under the name of one part of the operator."""

    def __init__(self, part: str) -> None:
        """Name the part, `webhook` for example."""
        self._logger = logging.getLogger(f"{ROOT}.{part}")

    def debug(self, words: str, **fields: Field) -> None:
        """Write what only a developer wants to know."""
        self._write(logging.DEBUG, words, fields)

    def info(self, words: str, **fields: Field) -> None:
        """Write what happened as intended."""
        self._write(logging.INFO, words, fields)

    def warning(self, words: str, **fields: Field) -> None:
        """Write what went wrong and will be tried again or was worked around."""
        self._write(logging.WARNING, words, fields)

    def error(self, words: str, **fields: Field) -> None:
        """Write what went wrong and needs somebody."""
        self._write(logging.ERROR, words, fields)

    def exception(self, words: str, **fields: Field) -> None:
        """Write an error that nothing foresaw, with its traceback; to be called where it is handled."""
        self._logger.exception(words, extra={"fields": fields})  # noqa: LOG004  # the caller handles it

    def _write(self, level: int, words: str, fields: dict[str, Field]) -> None:
        self._logger.log(level, words, extra={"fields": fields})


class RareLog:
    """Writes warnings that anybody can cause: at most one in a while, with the number of those left out."""

    def __init__(self, log: Log, clock: Callable[[], float], every_seconds: float = 1.0) -> None:
        """Write to a log by a monotonic clock."""
        self._log = log
        self._clock = clock
        self._every_seconds = every_seconds
        self._next = -math.inf
        self._num_left_out = 0

    def warning(self, words: str, **fields: Field) -> None:
        """Write what went wrong, or count it."""
        now = self._clock()
        if now < self._next:
            self._num_left_out += 1
            return
        left_out: dict[str, Field] = {"left_out": self._num_left_out} if self._num_left_out else {}
        self._next, self._num_left_out = now + self._every_seconds, 0
        self._log.warning(words, **fields, **left_out)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A field with a name of the record's own gets a `_` at its end."""
        line: dict[str, Field] = {
            "time": time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        line |= {f"{key}_" if key in line else key: value for key, value in fields_of(record).items()}
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """One line of text: time, level, words, fields. Line breaks inside a value are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, a traceback below it."""
        fields = " ".join(f"{key}={quote(value)}" for key, value in fields_of(record).items())
        part = record.name.removeprefix(f"{ROOT}.")
        line = f"{time_of(record)} {record.levelname:<7} {part}: {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: str, form: Format) -> None:
    """Send all log lines of the process to standard error in one form, from a level of `LEVELS` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(ROOT).setLevel(level.upper())
    logging.getLogger(NEEDLESS).setLevel(logging.ERROR)
    logging.getLogger(REQUESTS).addFilter(warn_of_tries)


def warn_of_tries(record: logging.LogRecord) -> bool:
    """Make a warning of an error that says what is tried again: an API server that is away needs nobody here."""
    if record.levelno == logging.ERROR and TRIED_AGAIN in record.getMessage():
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return True


def fields_of(record: logging.LogRecord) -> dict[str, Field]:
    """Return the fields of a record of ours; none for a library's."""
    fields: dict[str, Field] = getattr(record, "fields", {})
    return fields


def time_of(record: logging.LogRecord) -> str:
    """Return when a record was made, in UTC with milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def quote(value: Field) -> str:
    """Return a value as text; in JSON's quotes where it has spaces, quotes or line breaks."""
    text = str(value)
    is_plain = bool(text) and not set(text) & set(' \t\r\n"=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
