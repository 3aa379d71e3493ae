"""Run a program with the metrics lines of the built-in trainer, so that one benchmark measures both.

The first argument is the path of a program that saves in the run folder. It reports steps with `trainingjob_program`,
or logs them as MaxText does.
"""

import json
import logging
import os
import re
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import trainingjob_program

RUN_FOLDER = "TRAININGJOB_RUN_FOLDER"
LOGGED_STEP = re.compile(r"completed step: (\d+), .*loss: ([^,]+)")
"""Log line of MaxText after a step."""

type WriteLine = Callable[[int, float | None], None]


class LoggedSteps(logging.Handler):
    """Writes a line for each step in the log of a program."""

    def __init__(self, write_line: WriteLine) -> None:
        super().__init__()
        self._write_line = write_line

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a step that a record contains."""
        if found := LOGGED_STEP.search(record.getMessage()):
            self._write_line(int(found[1]), float(found[2]))


def main() -> None:
    """Run the program of the command line; process 0 writes a line for each step."""
    folder = Path(os.environ[RUN_FOLDER])
    os.environ[RUN_FOLDER] = str(folder / "checkpoints")
    sys.argv = sys.argv[1:]
    if os.environ["TRAININGJOB_PROCESS"] != "0":
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    path = folder / "metrics/metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", buffering=1) as lines:
        write_lines(lines, int(os.environ["TRAININGJOB_GENERATION"]))
        runpy.run_path(sys.argv[0], run_name="__main__")


def write_lines(lines: TextIO, generation: int) -> None:
    """Let each step that is reported or logged write a line too."""
    report = trainingjob_program.report_step

    def write_line(step: int, loss: float | None) -> None:
        line = {"generation": generation, "step": step, "loss": loss, "time": time.time()}
        lines.write(json.dumps(line) + "\n")

    def report_step(step: int, loss: float | None = None) -> None:
        report(step, loss)
        write_line(step, loss)

    trainingjob_program.report_step = report_step
    logging.getLogger().addHandler(LoggedSteps(write_line))


if __name__ == "__main__":
    main()
