"""Training in epochs: worlds of other sizes keep the number of steps, and train on each sequence as often as asked."""

import json
from pathlib import Path

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.tiny import GROWING_BATCH, make_world
from tests.trainer.test_main import make
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.world import Span

EPOCHS = 0.2
SHORT = {"training__steps": None, "training__epochs": EPOCHS}


@pytest.mark.slow
def test_worlds_of_any_size_train_the_same_epochs(crew: Crew, tmp_path: Path, text: Path, programs: Path) -> None:
    root = tmp_path / "shared/checkpoints"
    config = make(root, text, **SHORT | GROWING_BATCH)
    both = crew.start(config, make_world(1, 2), programs)
    crew.prepare(1)
    both[0].wait(lambda event: event.committed == 4)
    for trainer in both:
        trainer.kill()

    (alone,) = crew.start(config, make_world(2, 1, (Span(generation=1, first=1, last=4),)), programs)

    assert alone.wait_for_end() == 0, alone.tell_logs()
    totals = {event.total_steps for trainer in (*both, alone) for event in trainer.events if event.total_steps}
    (report,) = [event.data for event in alone.events if event.data]
    num_samples = -(-report.rows * 2 // 10)
    (total,) = totals
    assert total == 5 + -(-(num_samples - 5 * 4) // 8)
    assert (alone.phases[-1], max(alone.losses), alone.committed[-1]) == (Phase.DONE, total, total)
    assert report.epochs == round(num_samples / report.rows, 3)
    lines = [json.loads(line) for line in (root / "metrics/metrics.jsonl").read_text().splitlines()]
    counted = [line for line in lines if "loss" in line and (line["generation"] == 2 or line["step"] <= 4)]
    taken = [sample for line in counted for sample in range(line["first_slot"], line["last_slot"] + 1)]
    assert taken == list(range(num_samples))


@pytest.mark.slow
def test_a_schedule_longer_than_the_epochs_fails_the_job(
    crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    config = make(tmp_path / "shared/checkpoints", text, **SHORT, schedule__warmup=1000)

    (trainer,) = crew.start(config, make_world(1, 1), programs)
    trainer.wait_for_end()

    assert trainer.failure
    assert (trainer.failure.reason, trainer.failure.path) == (FailureReason.CONFIG, "spec.schedule.warmup")
    assert "of `spec.training.epochs` (0.2)" in trainer.failure.message
