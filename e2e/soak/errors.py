"""Errors that operators log. All that strikes in a soak is foreseen, so there is to be none."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trainingjob_operator.shell.logs import TextFormatter


@contextmanager
def watch_errors() -> Iterator[list[str]]:
    """Yield a list that takes every error which is logged meanwhile, by whomever, with its traceback."""
    watch = _Watch(logging.ERROR)
    logging.getLogger().addHandler(watch)
    try:
        yield watch.lines
    finally:
        logging.getLogger().removeHandler(watch)


class _Watch(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"an operator logged {self.format(record)}")
