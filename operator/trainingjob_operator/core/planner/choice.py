"""The result of `strategy: auto`: the chosen mesh and its runners-up."""

from dataclasses import dataclass

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import OffloadedItem, Remat
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.mesh import INFERRED, describe_degrees

EXPLICIT = "explicit"
"""The strategy of a spec with explicit parallelism degrees."""


@dataclass(frozen=True)
class Candidate:
    """A mesh, a remat policy and arrays in host memory for a job, with its estimated step time."""

    ici: AxisDegrees
    dcn: AxisDegrees
    remat: Remat
    step_seconds: float
    """Lower bound of the step time at the largest size."""
    score: float
    """Sum of the step times at the smallest and the largest size, in seconds."""
    offload: tuple[OffloadedItem, ...] | None = None
    """Arrays in host memory, with the state of the optimizer. None: those of the spec."""

    @property
    def rank(self) -> tuple[float, int]:
        """Return the sort key; the smallest is best. Equal scores are ordered by the number of sharded axes."""
        axes = sum(degree not in (1, INFERRED) for degrees in (self.ici, self.dcn) for _, degree in degrees.items())
        return float(f"{self.score:.4g}"), axes

    def apply(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """Return a spec with this candidate's mesh, remat policy and arrays in host memory."""
        parallelism = spec.parallelism.model_copy(update={"strategy": EXPLICIT, "ici": self.ici, "dcn": self.dcn})
        offload = spec.memory.offload if self.offload is None else self.offload
        memory = spec.memory.model_copy(update={"remat": self.remat, "offload": offload})
        return spec.model_copy(update={"parallelism": parallelism, "memory": memory})

    def describe(self) -> str:
        """Return the candidate as one line of text."""
        offload = f" · offload {', '.join(self.offload)}" if self.offload else ""
        return f"ici {describe_degrees(self.ici)} · dcn {describe_degrees(self.dcn)} · remat {self.remat}{offload}"


@dataclass(frozen=True)
class Choice:
    """The mesh that `strategy: auto` chose, with the runners-up."""

    chosen: Candidate
    runners_up: tuple[Candidate, ...]
    """The best of the other candidates."""
    num_candidates: int
    """Number of candidates that fit at the largest size."""
    has_known_rates: bool
    """Whether the step times are meaningful: the accelerator's rates are known."""
