"""Real trainer processes that get a request to drain outside of steps: in an evaluation, in a compilation."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.crew import Crew, Trainer
from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import Command
from trainingjob_api.protocol import Phase
from trainingjob_api.world import RunConfig, Span

FIRST = Span(generation=1, first=1)
LONG = 20_000
"""Batches whose evaluation takes longer than any grace period would."""


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """Return a folder with much text."""
    folder = tmp_path / "held-out"
    folder.mkdir()
    (folder / "part.txt").write_text("a word " * 200_000)
    return folder


def make(root: Path, text: Path, **changes: Any) -> RunConfig:
    saves = {"checkpoint__save__everySteps": 100_000, "training__steps": 100_000}
    return make_config(make_spec(root / "checkpoints", text, **saves | changes))


def evaluate(held_out: Path, num_batches: int, every: int = 3) -> list[dict[str, Any]]:
    return [{"name": "held", "path": str(held_out), "everySteps": every, "numBatches": num_batches}]


def find_evaluated(trainer: Trainer) -> float | None:
    found = [p.evaluations["held"] for event in trainer.events if (p := event.progress) and "held" in p.evaluations]
    return found[-1] if found else None


@pytest.mark.slow
def test_drain_during_an_evaluation_saves_the_step_and_the_next_world_evaluates_it(
    crew: Crew, tmp_path: Path, text: Path, held_out: Path
) -> None:
    programs = tmp_path / "programs"
    config = make(tmp_path, text, evaluation=evaluate(held_out, LONG))
    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        trainer.wait(lambda event: event.phase is Phase.EVALUATING)

    trainers[1].process.send_signal(signal.SIGTERM)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert (trainer.phases[-1], trainer.committed, max(trainer.losses)) == (Phase.LEFT, [3], 3)
        assert find_evaluated(trainer) is None

    config = make(tmp_path, text, evaluation=evaluate(held_out, 2))
    crew.prepare(2)
    again = crew.start(config, make_world(2, 2, (FIRST,)), programs)
    for trainer in again:
        trainer.wait_for_step(4)
        assert trainer.phases.count(Phase.EVALUATING) == 1
        assert find_evaluated(trainer) is not None
    again[0].write(Command(leave=True))
    for trainer in again:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()


@pytest.mark.slow
def test_drain_during_compilation_leaves_after_the_second_step_and_saves_it(
    crew: Crew, tmp_path: Path, text: Path
) -> None:
    trainers = crew.start(make(tmp_path, text), make_world(1, 2))
    trainers[1].wait(lambda event: event.phase is Phase.COMPILING)

    trainers[1].process.send_signal(signal.SIGTERM)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert (trainer.phases[-1], trainer.committed, max(trainer.losses)) == (Phase.LEFT, [2], 2)
