"""The length of a training in epochs: each sequence as often as asked for, whatever happens to the job."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.trainer.texts import fail
from tests.support.trainer.training import ONE, Run, sequences_of, spec_with
from tests.trainer.data.test_mixture import make_dataset, mix
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.training import BatchSizes, Training
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.mixture import Phase, TrainingText
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import continue_batch_sizes, count_samples, count_steps
from trainingjob_trainer.data.training_length import TrainingLength, find_training_length, resolve_epochs

NO_SHARDING: Any = None
"""The sample indices of a step need no mesh."""


def training_of(epochs: float | None = None, steps: int | None = None) -> Training:
    return Training(steps=steps, epochs=epochs, global_batch_size=4, sequence_length=2)


def read(text: TrainingText, steps: range, length: TrainingLength, sizes: BatchSizes) -> list[int]:
    """Return the sequences of some steps."""
    loader = BatchLoader(ONE, NO_SHARDING, max(size for _, size in sizes), SampleHistory(sizes), length)
    samples = np.concatenate([loader.samples(step) for step in steps]) if steps else np.array([], np.int64)
    return text.choose_sequences(samples, 3, SampleHistory(sizes)).tolist()


@st.composite
def schedules(draw: st.DrawFn) -> BatchSizes:
    """Return a history of batch sizes."""
    firsts = sorted(draw(st.sets(st.integers(2, 12), max_size=3)))
    return tuple((first, draw(st.integers(1, 9))) for first in (1, *firsts))


@given(st.integers(0, 200), schedules())
def test_the_steps_of_some_samples_are_the_fewest_that_take_them(num_samples: int, sizes: BatchSizes) -> None:
    steps = count_steps(num_samples, sizes)

    assert count_samples(steps, sizes) >= num_samples
    assert not steps or count_samples(steps - 1, sizes) < num_samples


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), schedules(), st.lists(st.integers(1, 60), max_size=3))
def test_each_sequence_comes_once_an_epoch_over_batch_schedules_and_restarts(
    num_sequences: int, epochs: int, sizes: BatchSizes, restarts: list[int]
) -> None:
    dataset = make_dataset(num_sequences)
    length = find_training_length(dataset, training_of(float(epochs)), sizes)
    ends = sorted({min(step, length.steps) for step in restarts})

    taken: list[int] = []
    history = sizes
    for before, after in pairwise([0, *ends, length.steps]):
        history = continue_batch_sizes(history, before, sizes)
        assert find_training_length(dataset, training_of(float(epochs)), history) == length
        taken += read(dataset, range(before + 1, after + 1), length, history)

    assert Counter(taken) == dict.fromkeys(range(num_sequences), epochs)
    each = [Counter(taken[first : first + num_sequences]) for first in range(0, len(taken), num_sequences)]
    assert each == [dict.fromkeys(range(num_sequences), 1)] * epochs


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 3)), min_size=1, max_size=4),
    st.fractions(Fraction(1, 8), 4, max_denominator=8),
    schedules(),
)
def test_an_epoch_of_a_mixture_ends_with_the_first_source_that_is_complete(
    sources: list[tuple[int, float]], epochs: Fraction, sizes: BatchSizes
) -> None:
    assume(any(weight > 0 for _, weight in sources))
    lengths, weights = ([one[place] for one in sources] for place in (0, 1))
    later = Phase(6, tuple(float(number + 1) for number in range(len(lengths))))
    mixture = mix(lengths, Phase(1, tuple(weights)), later)  # type: ignore[arg-type]
    length = find_training_length(mixture, training_of(float(epochs)), sizes)

    taken = read(mixture, range(1, length.steps + 1), length, sizes)

    assert len(taken) == length.samples
    ends = np.cumsum(lengths)
    counts = Counter(int(np.searchsorted(ends, number, side="right")) for number in taken)
    wanted = {place: ceil(Fraction(str(float(epochs))) * size) for place, size in enumerate(lengths)}
    assert any(counts[place] == number for place, number in wanted.items())
    assert all(counts[place] <= number for place, number in wanted.items())
    assert max(Counter(taken).values()) <= ceil(epochs)


@pytest.mark.parametrize(
    ("epochs", "want"),
    [
        (1.0, TrainingLength(3, 10, 2)),
        (2.0, TrainingLength(5, 20, 4)),
        (0.5, TrainingLength(2, 5, 1)),
        (0.01, TrainingLength(1, 1, 1)),
        (0.3, TrainingLength(1, 3, 3)),  # 0.3 x 10 is 3 exactly, unlike the product of the floats
        (1.1, TrainingLength(3, 11, 3)),
    ],
)
def test_the_last_step_takes_what_is_left(epochs: float, want: TrainingLength) -> None:
    assert find_training_length(make_dataset(10), training_of(epochs), ((1, 4),)) == want


def test_a_number_of_steps_is_the_length_itself() -> None:
    assert find_training_length(make_dataset(10), training_of(steps=7), ((1, 4), (5, 8))) == (7, 16 + 24, 8)


def test_rollbacks_keep_the_steps_and_take_later_samples() -> None:
    dataset, sizes = make_dataset(10), ((1, 4),)
    length = find_training_length(dataset, training_of(2.0), sizes)
    loader = BatchLoader(ONE, NO_SHARDING, 4, SampleHistory(sizes, ((4, 12),)), length)

    assert [loader.samples(step).tolist() for step in range(1, length.steps + 1)] == [
        [0, 1, 2, 3],
        [12, 13, 14, 15],
        [16, 17, 18, 19],
        [20, 21, 22, 23],
        [24, 25, 26, 27],
    ]


def test_more_steps_than_a_job_may_have_are_rejected() -> None:
    dataset = make_dataset(1_000_000)

    error = fail(lambda: find_training_length(dataset, training_of(1000.0), ((1, 1),)))

    assert (error.path, error.value) == ("spec.training.epochs", "1000.0")
    assert str(error) == (
        "must have at most 100,000,000 steps, but the text has 1,000,000,000 in 1000 epochs. Nearest legal value: 100."
    )


def test_a_spec_gets_the_number_of_its_steps() -> None:
    spec = spec_with(training__steps=None, training__epochs=2)

    assert resolve_epochs(spec, 40).training == spec.training.model_copy(update={"steps": 40, "epochs": None})
    assert resolve_epochs(spec_with(training__steps=9), 9) == spec_with(training__steps=9)


def test_a_schedule_that_does_not_fit_into_the_epochs_is_rejected() -> None:
    spec = spec_with(training__steps=None, training__epochs=2, schedule__warmup=40)

    error = fail(lambda: resolve_epochs(spec, 40))

    assert error.path == "spec.schedule.warmup"
    assert str(error) == ("40 must be less than the 40 steps of `spec.training.epochs` (2). Nearest legal value: 39.")


@pytest.mark.parametrize("layout", ["one device", "data 2, fsdp 2, tensor 2, accumulation 2"])
def test_the_rest_of_the_last_batch_is_padding_on_each_mesh(layout: str) -> None:
    run = Run(spec_with(training__steps=None, training__epochs=1), LAYOUTS.get(layout, ONE))
    sizes = run.spec.training.batch_sizes
    length = find_training_length(run.index, run.spec.training, sizes)
    run.batches = BatchLoader(
        LAYOUTS.get(layout, ONE),
        run.steps.batch_sharding,
        run.spec.training.largest_batch,
        SampleHistory(sizes),
        length,
    )

    batches = [run.batch(step) for step in range(1, length.steps + 1)]

    kept = [
        tuple(sequence)
        for batch in batches
        for sequence, weight in zip(
            sequences_of(batch).reshape(-1, run.spec.training.sequence_length + 1),
            np.asarray(batch.loss_weights).reshape(-1, run.spec.training.sequence_length),
            strict=True,
        )
        if weight.any()
    ]
    whole = run.index.sequences(np.arange(run.index.num_sequences))
    want = [(*tokens, targets[-1]) for tokens, targets in zip(whole.tokens, whole.targets, strict=True)]
    assert length.last_batch < run.spec.training.global_batch_size
    assert Counter(kept) == Counter(map(tuple, want))
