"""The schedule of a pipeline, against the ticks in which each stage works."""

import pytest

from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.spec.parallelism import Pipeline


def run(schedule: PipelineSchedule) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the group of layers and the microbatch by tick and stage. Each starts as soon as it can."""
    work = {}
    for group in range(schedule.repeats):
        for microbatch in range(schedule.microbatches):
            for stage in range(schedule.stages):
                work[group * schedule.microbatches + microbatch + stage, stage] = (group, microbatch)
    return work


@pytest.mark.parametrize(
    ("microbatches", "stages", "repeats"),
    [(1, 1, 1), (5, 1, 1), (4, 4, 1), (16, 4, 1), (2, 3, 1), (4, 4, 2), (8, 4, 3), (2, 2, 4)],
)
def test_the_numbers_are_those_of_the_ticks(microbatches: int, stages: int, repeats: int) -> None:
    schedule = PipelineSchedule(microbatches, stages, repeats)
    work = run(schedule)
    num_ticks = max(tick for tick, _ in work) + 1
    idle = num_ticks * stages - len(work)

    assert schedule.ticks == num_ticks
    assert schedule.saved_microbatches == -(-num_ticks // repeats)
    assert schedule.idle_ticks == idle / stages
    assert schedule.bubble_share == idle / (num_ticks * stages)
    assert {place: group for place, (group, _) in work.items()} == {
        (tick, stage): schedule.group_of(stage, tick) for tick, stage in work
    }


def test_a_microbatch_has_left_the_last_stage_when_it_enters_again() -> None:
    schedule = PipelineSchedule(4, 4, 3)
    when = {(group, microbatch, stage): tick for (tick, stage), (group, microbatch) in run(schedule).items()}

    for group, microbatch, stage in when:
        if stage == 0 and group:
            assert when[group, microbatch, 0] > when[group - 1, microbatch, schedule.stages - 1]


@pytest.mark.parametrize(("microbatches", "stages"), [(4, 4), (16, 4), (2, 2), (12, 3), (6, 2)])
def test_a_stage_that_alternates_keeps_its_inputs_until_their_backward_pass(microbatches: int, stages: int) -> None:
    schedule = PipelineSchedule(microbatches, stages, alternates=True)
    latency = stages - 1
    kept = {
        tick: sum(number <= tick <= number + 2 * latency for number in range(microbatches))
        for tick in range(microbatches + 2 * latency)
    }

    assert schedule.saved_microbatches == 1
    assert max(kept.values()) == min(schedule.saved_inputs, microbatches)
    assert schedule.lm_head_runs == microbatches
    # `latency` ticks run forward alone, as many backward alone, and the others both.
    assert schedule.ticks == microbatches + latency
    assert schedule.bubble_share == PipelineSchedule(microbatches, stages).bubble_share


def test_stages_that_do_not_alternate_keep_activations_alone_and_share_the_microbatches() -> None:
    schedule = PipelineSchedule(8, 4)

    assert schedule.saved_inputs == 0
    assert schedule.lm_head_runs == 2


@pytest.mark.parametrize(("stages", "alternates"), [(4, True), (1, False)])
def test_only_several_stages_alternate(stages: int, *, alternates: bool) -> None:
    pipeline = Pipeline.model_validate({"schedule": "oneForwardOneBackward"})

    assert pipeline.alternates(stages) is alternates
    assert pipeline.plan(8, stages) == PipelineSchedule(8, stages, alternates=alternates)


@pytest.mark.parametrize(
    ("written", "stages", "repeats"),
    [
        ({}, 4, 1),
        ({"schedule": "circular"}, 4, 2),
        ({"schedule": "circular", "repeats": 3}, 4, 3),
        ({"schedule": "circular"}, 1, 1),
    ],
)
def test_a_circular_schedule_has_several_groups_of_layers(
    written: dict[str, object], stages: int, repeats: int
) -> None:
    pipeline = Pipeline.model_validate(written)

    assert pipeline.plan(8, stages) == PipelineSchedule(8, stages, repeats)
