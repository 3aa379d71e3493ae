"""Entry point of `trainingjob` and `kubectl trainingjob`. Importing it registers every command."""

import sys
from pathlib import Path

from trainingjob_operator.cli import job_commands, model_commands, offline_commands
from trainingjob_operator.cli.app import app
from trainingjob_operator.cli.printing import install_pipe_safe_streams

__all__ = ["app", "job_commands", "main", "model_commands", "offline_commands"]


def main() -> None:
    """Run the command line."""
    install_pipe_safe_streams()
    called_by_kubectl = Path(sys.argv[0]).name == "kubectl-trainingjob"
    app(prog_name="kubectl trainingjob" if called_by_kubectl else "trainingjob")
