"""The program that all commands belong to, and the arguments that several of them take.

Each command imports what it needs when it runs, so that `--help` and shell completion answer at once.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainingjob_operator.cli.errors import CommandError


class Program(TyperGroup):
    """The group of all commands; it turns a `CommandError` into one line and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(error.code) from error


app = typer.Typer(
    cls=Program,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Check, plan, try, watch and change TrainingJobs. `validate`, `plan`, `render`, `explain`, `simulate` and "
    "`run` need no cluster.",
    epilog="Exit codes: 0 success; 1 the answer is no: a job has problems, plans differ, a run failed; 2 no answer: "
    "the command was not understood, or a file or the cluster cannot be read.",
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML file with one TrainingJob; `-` is standard input.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files; `-` is standard input.")]
Accelerators = Annotated[
    Path | None,
    typer.Option("--accelerators", metavar="ROWS", help="A YAML file with more accelerators, as the chart takes them."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The TrainingJob's name.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Its namespace. Default: the context's own.", show_default=False)
]
KubeContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="The kubeconfig file. Default: KUBECONFIG, else ~/.kube/config.")
]
