"""Hardware table of the offline commands: the built-in rows and an administrator's rows."""

from pathlib import Path

from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.shell.accelerators import load_accelerators


def read_hardware(path: Path | None) -> Hardware:
    """Return the hardware table with the rows of a file added.

    Rows that the operator would reject are reported as warnings and left out.

    Raises:
        UsageError: the file cannot be read, or holds no rows at all.
    """
    table = load_accelerators(path)
    if any(not refused.name for refused in table.invalid_rows):
        raise UsageError(" ".join(str(refused) for refused in table.invalid_rows))
    for refused in table.invalid_rows:
        echo(f"Warning  {refused}", err=True)
    return table.hardware
