"""The program section: a JAX program that the hosts run instead of the built-in trainer."""

import re
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import AbsolutePath, Strict
from trainingjob_api.meta import Example, Unit
from trainingjob_api.spec.training import MAX_STEP

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
"""A placeholder in an argument of `program.command`. Other braces are plain text."""
PLACEHOLDERS = (
    "coordinator",
    "devices",
    "devices_per_process",
    "generation",
    "process",
    "processes",
    "run_folder",
    "slice",
    "slices",
)
"""Names that a world replaces in the arguments. The variable of a name is `TRAININGJOB_` and the name in capitals."""


class ProgramProgress(Strict):
    """Steps that the agent reads in the log of a program which does not report them."""

    pattern: Annotated[
        Annotated[str, Field(min_length=1, max_length=512)],
        Example(r"completed step: (?P<step>\d+), .*loss: (?P<loss>\S+)"),
    ] = Field(
        description="Regular expression for a line of the log, with the groups `step`, `loss` and `saved`. A loss or a "
        "saved step is optional."
    )


class Program(Strict):
    """JAX program of one process per host, started again for each world. It replaces the built-in trainer."""

    command: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...], Example(["python", "train.py"])
    ] = Field(
        min_length=1,
        max_length=256,
        description="Command of the program, without a shell. `{processes}`, `{process}`, `{devices}`, `{slices}` and "
        "`{run_folder}` in arguments stand for values of the world.",
    )
    working_directory: Annotated[AbsolutePath | None, Example("/shared/code")] = Field(
        default=None, description="Folder in which the command starts. Unset: that of the image."
    )
    steps: Annotated[Annotated[int, Field(ge=1, le=MAX_STEP)] | None, Unit("steps"), Example(1000)] = Field(
        default=None,
        description="Number of steps, for progress and remaining time. The program itself decides when it ends.",
    )
    progress: ProgramProgress | None = Field(
        default=None,
        description="Steps in the log of the program. Unset: only those that it reports with `trainingjob_program`.",
    )
