"""Rollbacks of a mixture: each sequence comes once an epoch, those of excluded samples included, in whatever phase."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trainer.tiny import make_world
from tests.trainer.data.test_mixture import mix
from trainingjob_api.spec.data import Data
from trainingjob_api.world import Rollback
from trainingjob_trainer.data.mixture import Mixture, Phase, make_pattern
from trainingjob_trainer.data.sample_history import ONE_PHASE, PhaseRuns, SampleHistory
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance

BATCH, SEED = 4, 3
SIZES = [31, 19, 11]
FIRST_STEPS = (1, 10, 20)
HISTORY = SampleHistory(((1, BATCH),))


def mix_three() -> Mixture:
    return mix(SIZES, Phase(1, (3, 1, 0)), Phase(10, (1, 1, 1)), Phase(20, (0, 2, 1)))


def train(mixture: Mixture, history: SampleHistory, steps: range) -> list[int]:
    return [
        number for step in steps for number in mixture.choose_sequences(history.samples(step), SEED, history).tolist()
    ]


@pytest.mark.parametrize(
    ("parent", "step", "want"),
    {
        "within a phase": (4, 8, ()),
        "within a later phase": (12, 15, ((0, 1), (36, 10))),
        "to the step before a boundary": (9, 12, ((0, 1), (36, 10))),
        "to an earlier phase": (5, 12, ((0, 1), (36, 10), (48, 1))),
        "over two boundaries": (5, 22, ((0, 1), (36, 10), (76, 20), (88, 1))),
        "to the beginning": (0, 12, ((0, 1), (36, 10), (48, 1))),
        "to the beginning, within a phase": (0, 3, ()),
    }.values(),
)
def test_a_rollback_keeps_the_phases_of_the_samples_before_it(parent: int, step: int, want: PhaseRuns) -> None:
    assert HISTORY.exclude(parent, step, FIRST_STEPS).phase_runs == want


def test_a_job_without_a_schedule_has_one_run() -> None:
    after = HISTORY.exclude(0, 3, ONE_PHASE)

    assert (after.phase_runs, after.list_phase_runs(ONE_PHASE)) == ((), ((0, 1),))


def test_later_phases_begin_at_their_steps_after_a_rollback() -> None:
    after = HISTORY.exclude(5, 12, FIRST_STEPS)

    assert after.list_phase_runs(FIRST_STEPS) == ((0, 1), (36, 10), (48, 1), (64, 10), (104, 20))


stories = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 30)), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(stories)
def test_no_sequence_is_repeated_or_omitted_by_rollbacks(story: list[tuple[int, int]]) -> None:
    mixture, history = mix_three(), HISTORY
    step, taken = 0, list[int]()
    for length, parent in story:
        taken += train(mixture, history, range(step + 1, step + length + 1))
        step, ended = min(parent, step + length - 1), step + length
        history = history.exclude(step, ended, FIRST_STEPS)

        assert mixture.choose_sequences(np.arange(len(taken)), SEED, history).tolist() == taken
    taken += train(mixture, history, range(step + 1, step + 40))

    first = 0
    for size in SIZES:
        times = Counter(number for number in taken if first <= number < first + size)
        counts = [times[number] for number in range(first, first + size)]
        assert max(counts) - min(counts) <= 1
        first += size
    assert list(mixture.count_by_source(len(taken), history).values()) == [
        sum(first <= number < first + size for number in taken)
        for first, size in zip(np.cumsum([0, *SIZES[:-1]]), SIZES, strict=True)
    ]


def test_shares_after_a_rollback_are_those_of_the_phase_of_the_step() -> None:
    mixture, history = mix_three(), HISTORY.exclude(5, 12, FIRST_STEPS)

    first, second = (np.array(train(mixture, history, steps)) for steps in (range(6, 10), range(10, 20)))

    assert (first < SIZES[0] + SIZES[1]).all()
    assert (first < SIZES[0]).sum() == 12
    assert abs((second >= SIZES[0] + SIZES[1]).sum() - 40 / 3) < 2


ROLLBACKS = (
    Rollback(lineage=1, generation=1, step=12, parent=5),
    Rollback(lineage=2, generation=2, step=11, parent=8),
)


def test_a_world_carries_the_phases_of_excluded_samples() -> None:
    sizes = ((1, BATCH),)
    first = extend_provenance(Provenance(), make_world(1, 1), sizes, 0, 0, "durable", FIRST_STEPS)
    second = extend_provenance(first, make_world(2, 1, rollbacks=ROLLBACKS[:1]), sizes, 1, 5, "ram", FIRST_STEPS)
    third = extend_provenance(second, make_world(3, 1, rollbacks=ROLLBACKS), sizes, 2, 8, "ram", FIRST_STEPS)
    at_once = extend_provenance(first, make_world(3, 1, rollbacks=ROLLBACKS), sizes, 1, 4, "ram", FIRST_STEPS)

    assert (first.phase_runs, second.phase_runs) == ((), ((0, 1), (36, 10), (48, 1)))
    assert third.phase_runs == ((0, 1), (36, 10), (48, 1), (64, 10), (72, 1))
    assert at_once.phase_runs == third.phase_runs
    assert third.skipped == at_once.skipped == ((20, 48), (60, 72))


def test_patterns_of_all_phases_are_kept() -> None:
    (limit,) = (rule.max_length for rule in Data.model_fields["weight_schedule"].metadata)
    phases = (Phase(1, (1, 1)), *(Phase(step, (1, 1 / step)) for step in range(2, limit + 2)))
    mixture, history = mix([5, 5], *phases), HISTORY
    make_pattern.cache_clear()

    for _ in range(2):
        mixture.choose_sequences(np.arange(BATCH), SEED, history)

    assert make_pattern.cache_info().misses == len(phases)
