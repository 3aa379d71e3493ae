"""Run a program with the metrics lines of the built-in trainer, so that one benchmark measures both.

The first argument is the path of a program that reports steps with `trainingjob_program` and saves in the run folder.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import TextIO

import trainingjob_program

RUN_FOLDER = "TRAININGJOB_RUN_FOLDER"


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
    """Let each reported step write a line too."""
    report = trainingjob_program.report_step

    def report_step(step: int, loss: float | None = None) -> None:
        report(step, loss)
        line = {"generation": generation, "step": step, "loss": loss, "time": time.time()}
        lines.write(json.dumps(line) + "\n")

    trainingjob_program.report_step = report_step


if __name__ == "__main__":
    main()
