"""What is to be compiled ahead: one line of JSON on the compiling process' standard input."""

from pydantic import ConfigDict, Field

from trainingjob_api.base import Strict
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.world import Layout, RunConfig


class Request(Strict):
    """Compile programs of a size. `memory_bytes` is the most that the process may take for it."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it holds a secret

    config: RunConfig
    """As a world of that size would be told."""
    num_slices: int
    names: tuple[str, ...]
    memory_bytes: int
    program_secret: str = Field(default="", repr=False)
    """As in `Start`."""


def list_programs(spec: TrainingJobSpec, layout: Layout) -> tuple[str, ...]:
    """Return the programs of a world that goes on from a saved step; what makes a state only the first world needs."""
    is_given = spec.checkpoint.snapshots is not None or spec.checkpoint.readers == "oneReplica"
    names = {
        "train": True,
        "evaluate": bool(spec.evaluation),
        "spread": is_given and layout.num_hosts > 1,
        "replicas": spec.protection.compare_replicas is not None,
    }
    return tuple(name for name, is_built in names.items() if is_built)
