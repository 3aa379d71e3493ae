"""A process that tokenizes parts of a dataset: `python -m` this module, with its work on standard input.

The input is a pickled `PartWriter`, and then the numbers of parts, one a line. For each part the process writes lists
with its progress, and then an empty object, or the error: JSON, one line each. It ends with its input, so it never
outlives the trainer.
"""

import json
import os
import pickle
import sys
from typing import Any

from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.runtime.errors import TrainingError, storage_error


def main() -> None:
    """Tokenize parts until the input ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as CPUs
    writer: PartWriter = pickle.load(sys.stdin.buffer)  # noqa: S301  # written by the trainer that started this process
    for line in sys.stdin.buffer:
        print(json.dumps(_run(writer, int(line))), flush=True)


def _send(progress: PartProgress) -> None:
    print(json.dumps(progress), flush=True)


def _run(writer: PartWriter, part: int) -> dict[str, Any]:
    try:
        writer.write(part, _send)
    except TrainingError as error:
        return _describe(error)
    except OSError as error:
        return _describe(storage_error(error, f"tokenizing part {part}", writer.store.root))
    return {}


def _describe(error: TrainingError) -> dict[str, Any]:
    return {
        "reason": error.reason,
        "message": str(error),
        "path": error.path,
        "value": error.value,
        "fatal": error.fatal,
    }


if __name__ == "__main__":
    main()
