"""Compilation request: one line of JSON on the compiling process's standard input."""

from pydantic import ConfigDict, Field

from trainingjob_api.base import Strict
from trainingjob_api.decoding import find_decoding_shape
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.context import train_program_names
from trainingjob_trainer.monitoring.evaluate_programs import list_evaluate_layouts
from trainingjob_trainer.sampling.token_programs import PROGRAM_NAMES


class CompileRequest(Strict):
    """Request to compile programs of a size. `memory_bytes` is the memory limit of the process."""

    model_config = ConfigDict(hide_input_in_errors=True)  # contains a secret

    config: RunConfig
    """The configuration that a world of that size would get."""
    num_slices: int
    names: tuple[str, ...]
    memory_bytes: int
    program_secret: str = Field(default="", repr=False)
    """See `StartWorld`."""


def program_names(spec: TrainingJobSpec, layout: Layout) -> tuple[str, ...]:
    """Return the programs of a world that resumes from a saved step; only the first world also needs `init`."""
    is_given = spec.checkpoint.snapshots is not None or spec.checkpoint.restore is not None
    names = {
        **dict.fromkeys(train_program_names(spec).values(), True),
        **dict.fromkeys(list_evaluate_layouts(spec, layout), True),
        **dict.fromkeys(PROGRAM_NAMES, find_decoding_shape(spec) is not None),
        "average": spec.optimizer.average is not None,
        "spread": is_given and layout.num_hosts > 1,
        "replicas": spec.protection.compare_replicas is not None,
    }
    return tuple(name for name, is_built in names.items() if is_built)
