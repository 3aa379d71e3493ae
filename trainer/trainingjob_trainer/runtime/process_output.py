"""Output and exit of a trainer process."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from pydantic import BaseModel

type Send = Callable[[BaseModel], None]
"""Write an answer at once."""


def open_answers() -> Send:
    """Return the function that writes answers: a JSON message a line on standard output, for the command line.

    Whatever else prints goes to standard error from now on.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not break the answers

    def send(answer: BaseModel) -> None:
        print(answer.model_dump_json(), file=answers, flush=True)

    return send


def exit_now(code: int) -> NoReturn:
    """Flush the output and exit with a code. The interpreter's orderly exit would abort the JAX world."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
