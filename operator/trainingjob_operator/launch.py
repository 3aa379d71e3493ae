"""The entry point of `trainingjob-operator`: it says what to install where the operator's libraries are missing."""

import gc
import sys

from trainingjob_operator.cli.errors import describe_install_hint


def main() -> None:
    """Run the operator; with the argument `webhook` its webhook; with `test NAMESPACE` a test of the installation."""
    gc.disable()  # what is imported stays, so scanning it only delays the start
    try:
        from trainingjob_operator.shell.main import main as run  # noqa: PLC0415  # its libraries are an extra
    except ModuleNotFoundError as error:
        if not describe_install_hint(error, "operator"):
            raise
        sys.exit(f"Error: {describe_install_hint(error, 'operator')}")
    finally:
        gc.freeze()
        gc.enable()
    run(sys.argv[1:])
