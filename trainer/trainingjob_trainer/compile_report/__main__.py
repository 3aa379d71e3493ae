"""Compile the train step of a job at each of its sizes: a RunConfig on standard input, an answer a line on output.

Nothing is read or written but these, and no device is touched: it runs on any machine.
"""

import os
import sys
from pathlib import Path

from trainingjob_api.compile_report import CompileAnswer
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.compile_report.mock_devices import NoCompilerError, prepare
from trainingjob_trainer.runtime.process_output import open_answers

DUMP_VARIABLE = "TRAININGJOB_DUMP_HLO"
"""A folder for the text of the programs. Unset: it is not kept."""


def main() -> None:
    """Answer for each size in its order."""
    send = open_answers()
    config = RunConfig.model_validate_json(sys.stdin.read())
    prepare(config)
    for layout in config.layouts:
        send(_answer(config, layout))


def _answer(config: RunConfig, layout: Layout) -> CompileAnswer:
    folder = os.environ.get(DUMP_VARIABLE)
    dump = Path(folder) / f"{config.job.name}-{layout.num_slices}.hlo" if folder else None
    try:
        return CompileAnswer(num_slices=layout.num_slices, step=compile_step(config, layout, dump))
    except NoCompilerError as error:
        return CompileAnswer(num_slices=layout.num_slices, error=str(error))
    except Exception as error:  # noqa: BLE001  # whatever the compiler says is the answer for this size
        text = " ".join(str(error).split())
        return CompileAnswer(num_slices=layout.num_slices, error=f"{type(error).__name__}: {text[:2000]}")


if __name__ == "__main__":
    main()
