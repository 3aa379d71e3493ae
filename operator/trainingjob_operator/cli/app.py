"""The Typer application that all commands register with, and the arguments that several commands share.

Each command imports its dependencies when it runs, so that `--help` and shell completion stay fast.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from trainingjob_operator.cli.errors import EXIT_NO_RESULT, CommandError, describe_install_hint
from trainingjob_operator.cli.printing import echo

DAY_SECONDS = 86_400
MAX_WAIT_SECONDS = 365 * DAY_SECONDS
"""Largest time limit of a command. Every option that is a number has a largest value, so that `inf` is rejected."""
MAX_STEP = 100_000_000
"""Largest step of a job, as in the API."""

TRACEBACK = "TRAININGJOB_TRACEBACK"
"""Environment variable: if it is set, an unexpected error ends the command with its traceback."""


class CommandGroup(TyperGroup):
    """The command group. It turns every error into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except TyperException as error:
            error.message = _strip_pydantic_phrases(error.message)
            raise
        except (typer.Exit, typer.Abort):
            raise
        except CommandError as error:
            echo(f"Error: {error}", err=True)
            raise typer.Exit(error.code) from error
        except Exception as error:
            if TRACEBACK in os.environ:
                raise
            echo(f"Error: {describe_install_hint(error) or _describe_unexpected_error(error)}", err=True)
            raise typer.Exit(EXIT_NO_RESULT) from error


def _strip_pydantic_phrases(message: str) -> str:
    """Remove pydantic's phrases from the message about an invalid argument."""
    return (
        re.sub(r"Input should be (a |an )?", r"it must be \1", message)
        .replace("Value error, ", "")
        .partition(", unable to")[0]
    )


def find_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # keeps `--help` fast

    try:
        return version("trainingjob")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def _describe_unexpected_error(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {error}\nThis is a bug in trainingjob {find_version()}. Run the command again with "
        f"{TRACEBACK}=1 for the traceback, and report both."
    )


app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Validate, plan, run, watch and edit TrainingJobs. `validate`, `plan`, `render`, `explain`, `presets`, "
    "`convert`, `simulate` and `run` need no cluster.",
    epilog="Exit codes: 0 success; 1 negative result: a job has problems, plans differ, a run failed; 2 no result: "
    "the command is invalid, or a file, the job or the cluster cannot be read; 130 interrupted.",
)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001  # the value of an option
    if is_requested:
        echo(f"trainingjob {find_version()}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def version() -> None:
    """Print the version of this program."""
    echo(f"trainingjob {find_version()}")


File = Annotated[str, typer.Argument(metavar="FILE", help="YAML file with one TrainingJob; `-` is standard input.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files; `-` is standard input.")]
VolumeFolders = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=FOLDER", help="Folder of this machine that holds the files of a volume."),
]
Accelerators = Annotated[
    Path | None,
    typer.Option(
        "--accelerators",
        metavar="ROWS",
        help="YAML file with additional accelerators, in the format of the chart's value.",
    ),
]
Presets = Annotated[
    Path | None,
    typer.Option(
        "--presets", metavar="PRESETS", help="YAML file with additional presets, in the format of the chart's value."
    ),
]
PodProfiles = Annotated[
    Path | None,
    typer.Option(
        "--pod-profiles",
        metavar="PROFILES",
        help="YAML file with the pod profiles, in the format of the chart's value.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the TrainingJob.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the TrainingJob. Default: the namespace of the context.",
        show_default=False,
    ),
]
KubeContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Path of the kubeconfig. Default: KUBECONFIG, else ~/.kube/config.")
]
