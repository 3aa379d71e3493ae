"""The schedule of a pipeline, against the ticks in which each stage works."""

import pytest

from trainingjob_api.pipeline import PipelineSchedule


@pytest.mark.parametrize(("microbatches", "stages"), [(1, 1), (5, 1), (4, 4), (16, 4), (2, 3)])
def test_the_numbers_are_those_of_the_ticks(microbatches: int, stages: int) -> None:
    schedule = PipelineSchedule(microbatches, stages)
    working = {(microbatch + stage, stage) for microbatch in range(microbatches) for stage in range(stages)}
    num_ticks = max(tick for tick, _ in working) + 1
    idle = num_ticks * stages - len(working)

    assert schedule.ticks == schedule.saved_microbatches == num_ticks
    assert schedule.idle_ticks == idle / stages
    assert schedule.bubble_share == idle / (num_ticks * stages)
