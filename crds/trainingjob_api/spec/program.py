"""The program section: a JAX program in place of the built-in trainer, or a function that changes the trainer."""

import re
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import AbsolutePath, Strict
from trainingjob_api.meta import Example, Pattern, Unit, cel_rule
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

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
EntrypointName = Annotated[
    str,
    Pattern(rf"^{_NAME}(\.{_NAME})*:{_NAME}$", "a function of a module such as losses.focal:customize"),
    Field(max_length=256),
]
ConfigKey = Annotated[str, Pattern(rf"^{_NAME}$", "a name such as gamma"), Field(max_length=63)]


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
    """JAX program in place of the built-in trainer, or a function that changes parts of the built-in trainer."""

    command: Annotated[
        Annotated[tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...], Field(min_length=1, max_length=256)]
        | None,
        Example(["python", "train.py"]),
    ] = Field(
        default=None,
        description="Command of a program of one process per host, without a shell. `{processes}`, `{process}`, "
        "`{devices}`, `{slices}` and `{run_folder}` in arguments stand for values of the world.",
    )
    entrypoint: Annotated[EntrypointName | None, Example("losses.focal:customize")] = Field(
        default=None,
        description="Function that returns parts of the training step, such as another loss. The built-in trainer "
        "calls it, so all other sections keep their meaning.",
        exclude_if=lambda entrypoint: entrypoint is None,  # an agent before 0.1 refuses a field that it does not know
    )
    config: Annotated[dict[ConfigKey, Annotated[str, Field(max_length=1024)]], Example({"gamma": "2"})] = Field(
        default={},
        max_length=64,
        description="Texts that the function of `entrypoint` receives by name.",
        exclude_if=lambda config: not config,  # as for `entrypoint`
    )
    working_directory: Annotated[AbsolutePath | None, Example("/shared/code")] = Field(
        default=None,
        description="Folder in which the command starts, or that has the module of `entrypoint`. Unset: that of the "
        "image.",
    )
    steps: Annotated[Annotated[int, Field(ge=1, le=MAX_STEP)] | None, Unit("steps"), Example(1000)] = Field(
        default=None,
        description="Number of steps, for progress and remaining time. The program itself decides when it ends.",
    )
    progress: ProgramProgress | None = Field(
        default=None,
        description="Steps in the log of the program. Unset: only those that it reports with `trainingjob_program`.",
    )

    cel_rules = (
        cel_rule("has(self.command) != has(self.entrypoint)", "must have exactly one of `command` and `entrypoint`."),
    )
