"""Runs commands of `trainingjob` within a test."""

from functools import cache

import typer.testing
from typer.testing import CliRunner

__all__ = ["CliRunner"]

# Typer inspects the functions of all commands again for each call, which takes longer than most commands.
typer.testing._get_command = cache(typer.testing._get_command)
