"""Mixtures: which source each sample comes from, as a pure function of the weights in constant time at any sample.

The weights of a phase become a pattern of `PERIOD` samples that repeats. In it, each source has its share of the
samples, spread evenly: the n-th of W samples is due after (n + 1/2) / W of the period, and all are sorted by that (the
divisor method of Webster and Sainte-Lague). Any run of samples so has the right number of each source, up to one or
two. The samples of a source are numbered through all phases, and walk through its sequences epoch by epoch. Excluded
samples count too, in the phase in which a step took them.

Shapes: K sources, N samples.
"""

import hashlib
import json
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, lru_cache
from typing import NamedTuple

import jax
import numpy as np

from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.stored_probabilities import hash_descriptions
from trainingjob_trainer.data.token_dataset import Sequences, TokenDataset

PERIOD = 1 << 16
"""Samples of a pattern: weights are rounded to this fraction of their sum."""
MAX_PATTERNS = 128
"""Patterns that are kept: those of all phases that a job may have, because each step uses all up to its phase."""
EXACT = Context(prec=50)
"""Powers with these digits are the same on every CPU; those of floats are not."""


@dataclass(frozen=True)
class Phase:
    """The weights of all sources from a step on."""

    first_step: int
    weights: tuple[float, ...]


class Pattern(NamedTuple):
    """The sources of the samples of a period."""

    sources: np.ndarray
    """Source of each sample, int64 [PERIOD]."""
    ranks: np.ndarray
    """How many samples of the same source come before, int64 [PERIOD]."""
    counts: np.ndarray
    """Samples of each source in the period, int64 [K]."""

    def count_first(self, num_samples: int) -> np.ndarray:
        """Return how many of the first samples each source has, int64 [K]."""
        periods, rest = divmod(num_samples, PERIOD)
        return periods * self.counts + np.bincount(self.sources[:rest], minlength=len(self.counts))


@lru_cache(maxsize=MAX_PATTERNS)
def make_pattern(weights: tuple[float, ...], temperature: float = 1.0) -> Pattern:
    """Return the pattern of weights, each raised to 1 / `temperature`. A source with a weight has one sample at least.

    Raises:
        ValueError: no weight is above 0.
    """
    exponent = EXACT.divide(Decimal(1), Decimal(temperature))
    powers = [EXACT.power(Decimal(weight), exponent) if weight > 0 else Decimal(0) for weight in weights]
    total = sum(powers)
    if not total:
        raise ValueError("a mixture needs a weight above 0")
    exact_counts = [EXACT.divide(power * PERIOD, total) for power in powers]
    counts = [max(int(exact_count), int(exact_count > 0)) for exact_count in exact_counts]
    missing = PERIOD - sum(counts)  # goes to the largest remainders; below 0, the largest source gives way
    by_remainder = sorted(range(len(counts)), key=lambda place: int(exact_counts[place]) - exact_counts[place])
    for place in by_remainder[: max(missing, 0)]:
        counts[place] += 1
    counts[counts.index(max(counts))] += min(missing, 0)
    sources = np.repeat(np.arange(len(counts)), counts)
    ranks = np.concatenate([np.arange(count) for count in counts])
    order = np.argsort((ranks + 0.5) / np.repeat(counts, counts), kind="stable")
    return Pattern(sources[order], ranks[order], np.array(counts, np.int64))


@dataclass(frozen=True)
class Mixture:
    """Training text from several datasets, as one: its sequences are those of all datasets, one after another."""

    names: tuple[str, ...]
    datasets: tuple[TokenDataset, ...]
    phases: tuple[Phase, ...]
    """Phases by their first step, ascending; the first begins at step 1."""
    temperature: float = 1.0

    @cached_property
    def dataset_hash(self) -> str:
        """Return the hash of all that decides which sequence a sample selects."""
        sources = [[name, dataset.dataset_hash] for name, dataset in zip(self.names, self.datasets, strict=True)]
        phases = [[phase.first_step, phase.weights] for phase in self.phases]
        return hashlib.sha256(json.dumps([sources, phases, self.temperature]).encode()).hexdigest()

    @property
    def sequence_length(self) -> int:
        """Return the number of predictions of a sequence."""
        return self.datasets[0].sequence_length

    @property
    def is_isolated(self) -> bool:
        """Return whether tokens attend only to their own document."""
        return self.datasets[0].is_isolated

    @property
    def has_pairs(self) -> bool:
        """Return whether two sequences are one example."""
        return self.datasets[0].has_pairs

    @property
    def per_token(self) -> int:
        """Return the stored probabilities of each token; 0 without any."""
        return self.datasets[0].per_token

    @property
    def stored_hash(self) -> int:
        """Return a hash of the teacher of the stored probabilities; 0 without any."""
        if not self.datasets[0].stored:
            return 0
        return hash_descriptions([dataset.stored for dataset in self.datasets if dataset.stored])

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all datasets."""
        return sum(dataset.num_tokens for dataset in self.datasets)

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences of all datasets."""
        return int(self._ends[-1])

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([dataset.num_sequences for dataset in self.datasets])

    def choose_sequences(self, samples: np.ndarray, seed: int, history: SampleHistory) -> np.ndarray:
        """Return the sequence that each sample selects, int64 [N]."""
        sources, ordinals = self._locate(samples, history)
        numbers = np.empty(len(samples), np.int64)
        for place, (name, dataset) in enumerate(zip(self.names, self.datasets, strict=True)):
            is_of_source = sources == place
            first = self._ends[place] - dataset.num_sequences
            numbers[is_of_source] = first + dataset.sequences_of_samples(ordinals[is_of_source], seed, name)
        return numbers

    def count_by_source(self, num_samples: int, history: SampleHistory) -> dict[str, int]:
        """Return how many of the first samples of the job each source has."""
        counts = np.zeros(len(self.datasets), np.int64)
        starts, patterns = self._list_runs(history)
        starts = np.minimum(starts, num_samples)
        for pattern, length in zip(patterns, np.diff(starts, append=num_samples).tolist(), strict=True):
            counts += pattern.count_first(length)
        return dict(zip(self.names, map(int, counts), strict=True))

    def _locate(self, samples: np.ndarray, history: SampleHistory) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of each sample, and how many samples of that source come before it."""
        starts, patterns = self._list_runs(history)
        runs = np.searchsorted(starts, samples, side="right") - 1
        sources, ordinals = np.empty_like(samples), np.empty_like(samples)
        before = np.zeros(len(self.datasets), np.int64)
        for number, pattern in enumerate(patterns):
            is_in_run = runs == number
            periods, offsets = np.divmod(samples[is_in_run] - starts[number], PERIOD)
            sources[is_in_run] = chosen = pattern.sources[offsets]
            ordinals[is_in_run] = before[chosen] + periods * pattern.counts[chosen] + pattern.ranks[offsets]
            if number + 1 < len(patterns):
                before += pattern.count_first(int(starts[number + 1] - starts[number]))
        return sources, ordinals

    def _list_runs(self, history: SampleHistory) -> tuple[np.ndarray, list[Pattern]]:
        """Return the first sample of each run of samples in one phase, int64 [runs], and the pattern of each run."""
        patterns = {phase.first_step: make_pattern(phase.weights, self.temperature) for phase in self.phases}
        runs = history.list_phase_runs(tuple(patterns))
        return np.array([start for start, _ in runs], np.int64), [patterns[first_step] for _, first_step in runs]

    def sequences(self, numbers: np.ndarray) -> Sequences:
        """Return sequences by their numbers."""
        sources = np.searchsorted(self._ends, numbers, side="right")
        order = np.argsort(sources, kind="stable")
        parts = [
            dataset.sequences(numbers[selected] - (self._ends[place] - dataset.num_sequences))
            for place, dataset in enumerate(self.datasets)
            if (selected := order[sources[order] == place]).size
        ]
        back = np.argsort(order)
        joined: Sequences = jax.tree.map(lambda *arrays: np.concatenate(arrays)[back], *parts)
        return joined


type TrainingText = TokenDataset | Mixture
"""What training reads: all sources in proportion to their sizes, or a mixture of weighted sources."""
