"""Entry point of `trainingjob-agent`; if the trainer's libraries are missing, it names what to install."""

import gc
import sys


def main() -> None:
    """Run the agent of a host, and exit with its code."""
    gc.disable()  # what is imported stays, so scanning it only delays the start
    try:
        from trainingjob_agent.main import main as run  # noqa: PLC0415  # its libraries are an extra
    except ModuleNotFoundError as error:
        if (error.name or "trainingjob").startswith("trainingjob"):
            raise
        sys.exit(
            f"Error: this command needs {error.name}, which is not installed here. Install it: "
            "pip install 'trainingjob[trainer]'."
        )
    finally:
        gc.freeze()
        gc.enable()
    sys.exit(run())
