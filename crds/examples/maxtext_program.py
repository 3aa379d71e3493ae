"""Run MaxText 0.2.5, unchanged, as a program. `global_batch_size` is divided over devices; MaxText gets the rest.

`maxtext/configs/NAME.yml` names a config file of the package, wherever it is installed.

The section "Run MaxText" of docs/programs.md has a job with all its arguments, and the packages that its image needs.
"""

import os
import runpy
import sys
from importlib.resources import files

import jax

GLOBAL = "global_batch_size="
PACKAGE = "maxtext/"


def translate(argument: str) -> str:
    """Return an argument as MaxText has it: its batch size is that of one device, which depends on the world."""
    if argument.startswith(PACKAGE):
        return str(files("maxtext") / argument.removeprefix(PACKAGE))
    if not argument.startswith(GLOBAL):
        return argument
    return f"per_device_batch_size={int(argument.removeprefix(GLOBAL)) / jax.device_count()}"


def main() -> None:
    """Join the world and run MaxText, which then skips its own initialization of JAX."""
    os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")  # it needs no client of Google Cloud
    jax.distributed.initialize()  # everything about this world is in the environment
    sys.argv = ["train.py", *map(translate, sys.argv[1:])]
    runpy.run_module("maxtext.trainers.pre_train.train", run_name="__main__")


if __name__ == "__main__":
    main()
