"""The processor of this host: a CPU program does not run on a processor that lacks one of its instruction sets."""

import platform
from pathlib import Path


def describe_processor() -> list[str]:
    """Return the architecture and the instruction sets."""
    return [platform.machine(), _instruction_sets()]


def _instruction_sets() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
