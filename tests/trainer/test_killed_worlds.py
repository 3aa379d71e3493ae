"""Worlds that are killed at any step: what follows them goes on as if nothing had been."""

from pathlib import Path
from random import Random

import pytest

from tests.trainer.crew import Crew
from tests.trainer.test_child import MANY, make, read_history, undisturbed
from tests.trainer.tiny import make_world
from trainingjob_api.world import Span


@pytest.mark.slow
def test_a_world_that_is_killed_at_any_step_goes_on_to_the_same_bits(
    crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    root = tmp_path / "shared/checkpoints"
    config = make(root, text, training__steps=MANY)
    moments = Random(5)  # noqa: S311  # moments, not secrets
    spans: list[Span] = []
    for generation in (1, 2, 3):
        (trainer,) = crew.start(config, make_world(generation, 1, tuple(spans)), programs)
        crew.prepare(1)
        restored = trainer.wait(lambda event: event.restored is not None).restored or 0
        if spans:
            spans[-1] = spans[-1].model_copy(update={"last": restored})
        spans.append(Span(generation=generation, first=restored + 1))
        trainer.wait(lambda event: event.committed is not None)
        trainer.wait_for_step(max(trainer.losses) + moments.randint(1, 6))
        trainer.kill()

    lasts = [span.last for span in spans[:-1] if span.last]
    end = max(trainer.losses) - 1  # the last one is told before its line is written
    assert read_history(root, *lasts, end) == undisturbed(crew, root, text, programs, end)
