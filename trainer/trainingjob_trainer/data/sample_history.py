"""The history of the sample order: what decides which samples a step takes, and in which phase of weights each lies.

The phases of `data.weightSchedule` begin at steps. Without rollbacks, a phase begins with the first sample of its first
step. A rollback to a step before that excludes samples of the phase, and returns to an earlier phase with new samples.
So the samples of a job are runs, each in one phase, and a phase may have several. Each run continues where the runs
before it ended in each source: no sequence of an excluded sample comes again, and none is omitted. The runs up to the
newest rollback are part of the provenance that a checkpoint carries.
"""

from typing import NamedTuple

import numpy as np

from trainingjob_api.spec.training import BatchSizes
from trainingjob_trainer.data.sampler import ExcludedSamples, exclude_samples, samples_of_step

ONE_PHASE = (1,)
"""The first steps of the phases of a job whose weights never change."""

type PhaseRuns = tuple[tuple[int, int], ...]
"""First sample of each run of samples, and the first step of its phase. Both ascend, but for returns to a phase."""


class SampleHistory(NamedTuple):
    """Batch sizes and excluded samples of a job."""

    sizes: BatchSizes
    skipped: ExcludedSamples = ()
    phase_runs: PhaseRuns = ()
    """The runs up to the newest rollback, the one after it included. Empty: no rollback was to an earlier phase."""

    def samples(self, step: int) -> np.ndarray:
        """Return the sample indices of a step, int64."""
        return samples_of_step(step, self.sizes, self.skipped)

    def list_phase_runs(self, first_steps: tuple[int, ...]) -> PhaseRuns:
        """Return all runs, given the first steps of all phases, ascending. The first run begins with sample 0."""
        known = self.phase_runs or ((0, first_steps[0]),)
        coming = (first for first in first_steps if first > known[-1][1])
        return (*known, *((int(self.samples(first)[0]), first) for first in coming))

    def exclude(self, parent: int, step: int, first_steps: tuple[int, ...]) -> "SampleHistory":
        """Return the history after a rollback, which excludes the samples from step `parent` + 1 to `step`."""
        after = self._replace(skipped=exclude_samples(self.skipped, parent, step, self.sizes))
        next_sample = int(after.samples(parent + 1)[0])
        phase = max(first for first in first_steps if first <= parent + 1)
        runs = [run for run in self.list_phase_runs(first_steps) if run[0] < next_sample]
        if runs[-1][1] != phase:
            runs.append((next_sample, phase))
        return after._replace(phase_runs=tuple(runs) if len(runs) > 1 else ())
