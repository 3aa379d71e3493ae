"""The schedule of a pipeline: ticks, microbatches in flight and bubble, for planner and trainer alike.

The schedule is GPipe's (Huang et al., arXiv 1811.06965): all microbatches run forward, then all run backward. In each
tick every stage works on another microbatch. In the first and the last ticks some stages are idle.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    """One accumulation step on the stages of a pipeline. One stage is no pipeline."""

    microbatches: int
    stages: int

    @property
    def idle_ticks(self) -> int:
        """Return the ticks in which a stage is idle in one pass."""
        return self.stages - 1

    @property
    def ticks(self) -> int:
        """Return the ticks of one pass, including idle ones."""
        return self.microbatches + self.idle_ticks

    @property
    def saved_microbatches(self) -> int:
        """Return the microbatches whose activations a stage holds at once.

        The forward pass ends before the backward pass begins, and idle ticks run on zeros, whose activations are saved
        too.
        """
        return self.ticks

    @property
    def bubble_share(self) -> float:
        """Return the share of a stage's time that is idle."""
        return self.idle_ticks / self.ticks
