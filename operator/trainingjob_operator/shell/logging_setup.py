"""Structured logging: a constant message and variable fields, as JSON or text.

`Log("lease").info("lease taken", holder=name)` becomes one JSON object or one line of text. Only scalar fields are
logged, never objects, tokens or certificates.
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
KOPF_SIGNAL_LOGGER = "kopf._core.reactor.running"
"""Logger of kopf's warning that its thread receives no signals, which is intended."""
KOPF_REQUEST_LOGGER = "kopf._cogs.clients.watching"
"""Logger in which kopf reports every failed request as an error, even if it retries the request."""
RETRY_MARKER = "failed; will retry"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "text")


class Log:
    """Logger of one component of the operator."""

    def __init__(self, component: str) -> None:
        """Create the logger of a component, for example `webhook`."""
        self._logger = logging.getLogger(f"{ROOT}.{component}")

    def debug(self, message: str, /, **fields: Field) -> None:
        """Log a detail for developers."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: Field) -> None:
        """Log a regular event."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Field) -> None:
        """Log a problem that the operator retries or works around."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: Field) -> None:
        """Log a problem that needs an administrator."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: Field) -> None:
        """Log an unexpected error with its traceback; to be called in the exception handler."""
        self._logger.exception(message, extra={"fields": fields})  # noqa: LOG004  # the caller handles it

    def _write(self, level: int, message: str, fields: dict[str, Field]) -> None:
        self._logger.log(level, message, extra={"fields": fields})


class RateLimitedLog:
    """Rate-limited warnings, for problems that any peer can cause. Each line has the number of suppressed warnings."""

    def __init__(self, log: Log, clock: Callable[[], float], every_seconds: float = 1.0) -> None:
        self._log = log
        self._clock = clock
        self._every_seconds = every_seconds
        self._next = -math.inf
        self._num_suppressed = 0

    def warning(self, message: str, /, **fields: Field) -> None:
        """Log a warning, or count it if it is suppressed."""
        now = self._clock()
        if now < self._next:
            self._num_suppressed += 1
            return
        suppressed: dict[str, Field] = {"left_out": self._num_suppressed} if self._num_suppressed else {}
        self._next, self._num_suppressed = now + self._every_seconds, 0
        self._log.warning(message, **fields, **suppressed)


class JsonFormatter(logging.Formatter):
    """Formatter with one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A field whose name is a standard key gets a trailing `_`."""
        entry: dict[str, Field] = {
            "time": time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        entry |= {f"{key}_" if key in entry else key: value for key, value in fields_of(record).items()}
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formatter with one line of text: time, level, message, fields. Line breaks in values are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        fields = " ".join(f"{key}={quote(value)}" for key, value in fields_of(record).items())
        component = record.name.removeprefix(f"{ROOT}.")
        line = f"{time_of(record)} {record.levelname:<7} {component}: {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(level: str, log_format: Format) -> None:
    """Log to standard error in one format, from a minimum level of `LEVELS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    set_log_level(level)
    logging.getLogger(KOPF_SIGNAL_LOGGER).setLevel(logging.ERROR)
    logging.getLogger(KOPF_REQUEST_LOGGER).addFilter(downgrade_retried_errors)


def set_log_level(level: str) -> None:
    """Set the minimum level, one of `LEVELS`. Records of libraries need at least a warning."""
    logging.getLogger(ROOT).setLevel(level.upper())


def downgrade_retried_errors(record: logging.LogRecord) -> bool:
    """Log filter that turns retried errors into warnings: an unreachable API server needs no action here."""
    if record.levelno == logging.ERROR and RETRY_MARKER in record.getMessage():
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return True


def fields_of(record: logging.LogRecord) -> dict[str, Field]:
    """Return the fields of a record; empty for records of libraries."""
    fields: dict[str, Field] = getattr(record, "fields", {})
    return fields


def time_of(record: logging.LogRecord) -> str:
    """Return the time of a record, in UTC with milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def quote(value: Field) -> str:
    """Return a value as text; as a JSON string if it contains spaces, quotes, `=` or line breaks."""
    text = str(value)
    is_plain = bool(text) and not set(text) & set(' \t\r\n"=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
