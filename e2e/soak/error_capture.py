"""Capture of the operators' error logs. A soak injects only expected faults, so no error may be logged."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trainingjob_operator.shell.logging_setup import TextFormatter


@contextmanager
def capture_errors() -> Iterator[list[str]]:
    """Yield a list that receives every error logged meanwhile, by any logger, with its traceback."""
    watch = _CapturingHandler(logging.ERROR)
    logging.getLogger().addHandler(watch)
    try:
        yield watch.lines
    finally:
        logging.getLogger().removeHandler(watch)


class _CapturingHandler(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"an operator logged {self.format(record)}")
