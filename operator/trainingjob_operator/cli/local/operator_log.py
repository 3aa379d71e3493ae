"""The operator's log of a local run: a file beside the hosts' logs. Errors are also shown to the user."""

import contextlib
import logging
from collections.abc import Iterator

from trainingjob_operator.cli.local.view import View
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.shell.logging_setup import ROOT, TextFormatter

NAME = "operator.log"


@contextlib.contextmanager
def capture_operator_log(workspace: Workspace, view: View) -> Iterator[None]:
    """Write the operator's log to its file while the context lasts; show each distinct error once in the view."""
    path = workspace.logs / NAME
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(TextFormatter())
    logger = logging.getLogger(ROOT)
    handlers = (file, _ViewHandler(view, f"see {path}"))
    former_settings = logger.level, logger.propagate
    logger.propagate = False
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        level, logger.propagate = former_settings
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
        file.close()


class _ViewHandler(logging.Handler):
    """Shows errors to the user."""

    def __init__(self, view: View, hint: str) -> None:
        super().__init__(logging.ERROR)
        self._view = view
        self._hint = hint
        self._shown_lines: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        line = f"{record.getMessage()}: {type(error).__name__}: {error}" if error else record.getMessage()
        if line not in self._shown_lines:
            self._shown_lines.add(line)
            self._view.print_line(f"internal error: {line}; {self._hint}")
