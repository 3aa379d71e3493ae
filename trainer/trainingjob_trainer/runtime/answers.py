"""Answers of a process that the command line starts: a JSON message a line on its standard output."""

import os
from collections.abc import Callable

from pydantic import BaseModel

type Send = Callable[[BaseModel], None]
"""Write an answer at once."""


def open_answers() -> Send:
    """Return the function that writes answers. Whatever else prints goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not break the answers

    def send(answer: BaseModel) -> None:
        print(answer.model_dump_json(), file=answers, flush=True)

    return send
