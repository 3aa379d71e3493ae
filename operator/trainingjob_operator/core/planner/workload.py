"""The part of a spec on which memory, arithmetic and traffic of a train step depend, as a value to remember by."""

from dataclasses import dataclass

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.learning import Model, Precision
from trainingjob_api.machine import Rules

CPU = "cpu"
FLOAT32 = 4
_BYTES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True)
class Workload:
    """What one row of a batch asks of the devices that work on it."""

    model: Model
    length: int
    """Tokens of a row."""
    precision: Precision
    remat: str
    rules: Rules
    """How parameters are split, where not by default."""
    is_cpu: bool
    """Whether XLA's compiler for CPUs makes the program: it scatters no sums."""

    @property
    def compute_bytes(self) -> int:
        """Return the bytes of a number that is computed with."""
        return _BYTES[self.precision.compute]

    @property
    def param_bytes(self) -> int:
        """Return the bytes of a parameter as it is stored."""
        return _BYTES[self.precision.params]


def describe_workload(spec: TrainingJobSpec) -> Workload:
    """Return the workload of a spec."""
    is_cpu = spec.slices.accelerator == CPU
    length, rules = spec.training.sequence_length, spec.parallelism.rules
    return Workload(spec.model, length, spec.precision, spec.memory.remat, rules, is_cpu)
