"""The schedule of a pipeline: ticks, microbatches in flight and bubble, for planner and trainer alike.

In each tick every stage works on another microbatch. In the first and the last ticks some stages are idle. All
microbatches run forward, then all run backward (GPipe; Huang et al., arXiv 1811.06965).

With one forward and one backward pass in turn, the backward pass of a microbatch starts when the last stage has run it
forward (PipeDream-Flush; Narayanan et al., arXiv 2006.09503). A stage keeps its inputs of the microbatches between both
passes, and computes its activations of a microbatch again.

A circular schedule gives each stage several groups of layers that are not adjacent. A microbatch goes around as often,
and a tick is as much shorter, so that idle ticks cost less (Narayanan et al., arXiv 2104.04473).
"""

from dataclasses import dataclass
from typing import Literal

type ScheduleName = Literal["gpipe", "circular", "oneForwardOneBackward"]
DEFAULT_REPEATS = 2
"""Groups of layers of a stage of a circular schedule, unless the spec has another number."""


@dataclass(frozen=True)
class PipelineSchedule:
    """One accumulation step on the stages of a pipeline. One stage is no pipeline."""

    microbatches: int
    """With several repeats at least as many as stages: the first stage must not wait for the last one."""
    stages: int
    repeats: int = 1
    """Groups of layers of each stage. Group r of stage s has the layers after those of group r of stage s - 1."""
    alternates: bool = False
    """Whether a stage runs one forward and one backward pass in turn, with one group of layers."""

    @property
    def idle_ticks(self) -> int:
        """Return the ticks in which a stage is idle in one pass."""
        return self.stages - 1

    @property
    def ticks(self) -> int:
        """Return the ticks of one pass, including idle ones. In a tick, a stage runs one of its groups of layers."""
        return self.repeats * self.microbatches + self.idle_ticks

    @property
    def saved_microbatches(self) -> int:
        """Return the microbatches whose activations a stage holds at once, of all its layers.

        If all microbatches run forward first, these are all of them, and the zeros of idle ticks. A stage that
        alternates holds those of the microbatch that runs backward.
        """
        return 1 if self.alternates else -(-self.ticks // self.repeats)

    @property
    def saved_inputs(self) -> int:
        """Return the microbatches of which a stage has places for its input, beside `saved_microbatches`.

        The backward pass reaches the first stage 2 (S - 1) ticks after the forward pass left it. All devices run one
        program, so that each stage has as many places as the first one needs.
        """
        return 2 * self.stages - 1 if self.alternates else 0

    @property
    def lm_head_runs(self) -> int:
        """Return how often a stage runs the LM head: for its own microbatches, or for its columns of each one."""
        return self.microbatches if self.alternates else self.microbatches // self.stages

    @property
    def bubble_share(self) -> float:
        """Return the share of a stage's time that is idle."""
        return self.idle_ticks / self.ticks

    def group_of(self, stage: int, tick: int) -> int:
        """Return the group of layers that a stage runs in a tick; any in an idle one."""
        return min(max(tick - stage, 0) // self.microbatches, self.repeats - 1)
