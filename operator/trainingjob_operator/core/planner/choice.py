"""What the planner chose by itself, and what it chose from."""

from dataclasses import dataclass

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees
from trainingjob_operator.core.planner.mesh import REST, describe_degrees

EXPLICIT = "explicit"
"""The strategy of a spec whose mesh is written out."""


@dataclass(frozen=True)
class Candidate:
    """One way to lay a job out, and what it comes to."""

    ici: AxisDegrees
    dcn: AxisDegrees
    remat: str
    seconds: float
    """A step at the largest size, at best."""
    score: float
    """Seconds of a step at the smallest and at the largest size together."""

    @property
    def rank(self) -> tuple[float, int]:
        """Return what makes one candidate better than another: the smaller the better."""
        axes = sum(degree not in (1, REST) for degrees in (self.ici, self.dcn) for _, degree in degrees.items())
        return float(f"{self.score:.4g}"), axes

    def apply(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """Return a spec that is written out as this candidate has it."""
        parallelism = spec.parallelism.model_copy(update={"strategy": EXPLICIT, "ici": self.ici, "dcn": self.dcn})
        memory = spec.memory.model_copy(update={"remat": self.remat})
        return spec.model_copy(update={"parallelism": parallelism, "memory": memory})

    def describe(self) -> str:
        """Return the candidate on one line."""
        return f"ici {describe_degrees(self.ici)} · dcn {describe_degrees(self.dcn)} · remat {self.remat}"


@dataclass(frozen=True)
class Choice:
    """What `auto` took, and what it took it from."""

    best: Candidate
    others: tuple[Candidate, ...]
    """The best of those that it did not take."""
    num_fitting: int
    """How many ways there were to train the job."""
    is_timed: bool
    """Whether seconds mean anything: the accelerator's rates are known."""
