"""The sample order: each row once an epoch, in an order that only the seed decides."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainingjob_api.spec.training import BatchSizes
from trainingjob_trainer.data.sampler import (
    WHOLE_BATCH,
    ExcludedSamples,
    SampleShare,
    continue_batch_sizes,
    count_samples,
    exclude_samples,
    permute,
    samples_of_step,
    sequences_of_samples,
    size_of_step,
)


def every(batch: int) -> BatchSizes:
    """Return the history of a job with one batch size."""
    return ((1, batch),)


SIZES = (1, 2, 3, 4, 5, 16, 17, 100, 257, 4096, 65537)


@pytest.mark.parametrize("num_rows", SIZES)
def test_an_epoch_holds_every_row_once(num_rows: int) -> None:
    rows = permute(np.arange(num_rows), num_rows, seed=3, epoch=0)

    assert sorted(rows.tolist()) == list(range(num_rows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    places = np.arange(1000)
    orders = {tuple(permute(places, 1000, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}

    assert len(orders) == 4


def test_the_order_stays_what_it_was() -> None:
    # A change here trains running jobs on other rows than their checkpoints say.
    assert permute(np.arange(8), 8, seed=0, epoch=0).tolist() == [5, 4, 1, 7, 2, 3, 6, 0]


def test_neighbours_are_scattered() -> None:
    rows = permute(np.arange(10_000), 10_000, seed=0, epoch=0)

    assert abs(np.corrcoef(np.arange(10_000), rows)[0, 1]) < 0.05


def test_rows_beyond_32_bits_are_reached() -> None:
    num_rows = 10**13
    rows = permute(np.arange(1000), num_rows, seed=1, epoch=2)

    assert len(set(rows.tolist())) == 1000
    assert 0.4 * num_rows < rows.mean() < 0.6 * num_rows


@pytest.mark.parametrize("batch", [1, 3, 7, 10, 25])
def test_batches_of_any_size_walk_the_same_slots(batch: int) -> None:
    num_steps = 50
    slots = np.concatenate([samples_of_step(step, every(batch)) for step in range(1, num_steps + 1)])

    assert slots.tolist() == list(range(num_steps * batch))


def test_a_batch_may_span_epochs() -> None:
    rows = sequences_of_samples(np.arange(25), num_rows=10, seed=0)

    assert sorted(rows[:10]) == sorted(rows[10:20]) == list(range(10))
    assert len(set(rows[20:])) == 5


def test_a_slot_far_out_is_found_alone() -> None:
    slot = np.array([10**15 + 7])

    assert (
        sequences_of_samples(slot, 12_345, seed=9)
        == sequences_of_samples(np.arange(slot[0] - 5, slot[0] + 1), 12_345, 9)[-1]
    )


@st.composite
def gaps(draw: st.DrawFn) -> ExcludedSamples:
    """Return ranges that are apart, anywhere."""
    edges = draw(st.lists(st.integers(0, 300), unique=True, max_size=12).map(sorted))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(gaps(), st.integers(1, 25))
def test_each_slot_that_is_not_left_out_is_used_once_and_in_order(skipped: ExcludedSamples, batch: int) -> None:
    num_steps = 400 // batch
    slots = np.concatenate([samples_of_step(step, every(batch), skipped) for step in range(1, num_steps + 1)]).tolist()

    left_out = {slot for first, end in skipped for slot in range(first, end)}
    assert slots == [slot for slot in range(slots[-1] + 1) if slot not in left_out]
    assert len(slots) == num_steps * batch


rollbacks = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), max_size=6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(gaps(), rollbacks, st.integers(1, 8))
def test_a_rollback_leaves_out_the_samples_since_its_parent_and_nothing_before_changes(
    skipped: ExcludedSamples, story: list[tuple[int, int]], batch: int
) -> None:
    for parent, length in story:
        before, skipped = skipped, exclude_samples(skipped, parent, parent + length, every(batch))

        kept = [samples_of_step(step, every(batch), skipped).tolist() for step in range(1, parent + 1)]
        assert kept == [samples_of_step(step, every(batch), before).tolist() for step in range(1, parent + 1)]
        next_ones = [samples_of_step(parent + step, every(batch), skipped).tolist() for step in range(1, 6)]
        assert next_ones == [
            samples_of_step(parent + length + step, every(batch), before).tolist() for step in range(1, 6)
        ]
        assert all(first < end for first, end in skipped)
        assert all(one[1] < other[0] for one, other in pairwise(skipped))


GROWING: BatchSizes = ((1, 4), (11, 8), (21, 16))
CHANGES: dict[str, tuple[BatchSizes, int, BatchSizes, BatchSizes]] = {
    "from scratch": ((), 0, ((1, 4),), ((1, 4),)),
    "an older step": ((), 10, ((1, 4),), ((1, 4),)),
    "the same size": (((1, 4),), 10, ((1, 4),), ((1, 4),)),
    "a larger one": (((1, 4),), 10, ((1, 8),), ((1, 4), (11, 8))),
    "a smaller one": (((1, 4),), 10, ((1, 1),), ((1, 4), (11, 1))),
    "a third one": (((1, 4), (11, 8)), 20, ((1, 2),), ((1, 4), (11, 8), (21, 2))),
    "back to the first one": (((1, 4), (11, 8)), 20, ((1, 4),), ((1, 4), (11, 8), (21, 4))),
    "again, before any step of it": (((1, 4), (11, 8)), 10, ((1, 2),), ((1, 4), (11, 2))),
    "again with the first, before any step of it": (((1, 4), (11, 8)), 10, ((1, 4),), ((1, 4),)),
    "a schedule from scratch": ((), 0, GROWING, GROWING),
    "a schedule after its own steps": (GROWING, 15, GROWING, GROWING),
    "a schedule after all of its steps": (GROWING, 40, GROWING, GROWING),
    "a schedule after steps of an older trainer": ((), 15, GROWING, GROWING),
    "a schedule after steps of another size": (((1, 2),), 15, GROWING, ((1, 2), (16, 8), (21, 16))),
    "a schedule after the step before a phase": (((1, 2),), 10, GROWING, ((1, 2), (11, 8), (21, 16))),
    "another schedule": (GROWING, 15, ((1, 4), (18, 32)), ((1, 4), (11, 8), (16, 4), (18, 32))),
}


@pytest.mark.parametrize(("sizes", "step", "planned", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_planned_batch_sizes_hold_from_the_next_step_on(
    sizes: BatchSizes, step: int, planned: BatchSizes, want: BatchSizes
) -> None:
    assert continue_batch_sizes(sizes, step, planned) == want


def test_a_step_has_the_size_of_its_phase() -> None:
    assert [size_of_step(step, GROWING) for step in (1, 10, 11, 20, 21, 99)] == [4, 4, 8, 8, 16, 16]


def test_samples_are_counted_over_all_sizes() -> None:
    sizes = ((1, 4), (11, 8), (13, 2))

    assert [count_samples(steps, sizes) for steps in (0, 1, 10, 11, 12, 13, 20)] == [0, 4, 40, 48, 56, 58, 72]


sizes_of_specs = st.lists(st.tuples(st.integers(2, 40), st.integers(1, 9)), min_size=1, max_size=4).map(
    lambda entries: ((1, entries[0][1]), *sorted(dict(entries[1:]).items()))
)
takeovers = st.lists(st.tuples(st.integers(0, 9), sizes_of_specs), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(takeovers, gaps())
def test_no_sample_comes_twice_or_never_however_often_the_batch_size_changes(
    story: list[tuple[int, BatchSizes]], skipped: ExcludedSamples
) -> None:
    sizes: BatchSizes = ()
    step, slots = 0, list[int]()
    for length, planned in story:
        sizes = continue_batch_sizes(sizes, step, planned)
        for _ in range(length):
            step += 1
            taken = samples_of_step(step, sizes, skipped).tolist()
            assert len(taken) == size_of_step(step, planned)
            slots += taken

    left_out = {slot for first, end in skipped for slot in range(first, end)}
    assert slots == [slot for slot in range(slots[-1] + 1 if slots else 0) if slot not in left_out]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(takeovers, st.integers(0, 8), st.integers(1, 8))
def test_a_rollback_leaves_out_what_its_own_batch_sizes_took(
    story: list[tuple[int, BatchSizes]], parent: int, length: int
) -> None:
    sizes: BatchSizes = ()
    step = 0
    for steps, planned in story:
        sizes = continue_batch_sizes(sizes, step, planned)
        step += steps

    skipped = exclude_samples((), parent, parent + length, sizes)

    assert skipped == ((count_samples(parent, sizes), count_samples(parent + length, sizes)),)


@pytest.mark.parametrize(("num_samples", "sizes"), [(12, {3}), (10, {2, 3}), (3, {0, 1})])
def test_the_shares_of_replicas_are_the_samples_of_a_step(num_samples: int, sizes: set[int]) -> None:
    samples = np.arange(40, 40 + num_samples)
    shares = [SampleShare(part, 4).take(samples) for part in range(4)]

    assert np.concatenate(shares).tolist() == samples.tolist()
    assert {len(share) for share in shares} == sizes
    assert WHOLE_BATCH.take(samples).tolist() == samples.tolist()
