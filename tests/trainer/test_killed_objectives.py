"""Whole jobs with a second model that are killed: the next worlds resume without any difference."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.trainer.chat import write_records
from tests.support.trainer.crew import Crew
from tests.support.trainer.distillation import TEACHER, distillation
from tests.support.trainer.saved_models import save_model
from tests.support.trainer.tiny import make_spec, make_world
from tests.trainer.test_main import MANY, make, read_history, undisturbed
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import Span

type Prepare = Callable[[Path], dict[str, Any]]
"""Writes the sources of a job below a folder, and returns the changes of its spec."""


def prepare_distillation(folder: Path) -> dict[str, Any]:
    teacher = TEACHER | {"initializeFrom": {"uri": str(folder / "teacher"), "step": 3}}
    changes = {"objective": distillation(teacher=teacher)}
    described = describe_teacher(TrainingJobSpec.model_validate(make_spec(folder, folder, **changes)))
    assert described
    save_model(folder / "teacher", described, 3)
    return changes


def prepare_preferences(folder: Path) -> dict[str, Any]:
    save_model(folder / "base", TrainingJobSpec.model_validate(make_spec(folder, folder)), 3)
    records = ({"q": f"{number}+1=", "good": str(number + 1), "bad": "many"} for number in range(9))
    write_records(folder / "pairs/a.jsonl", *records)
    source = {"name": "pairs", "format": "jsonl", "path": str(folder / "pairs")}
    return {
        "objective": {"type": "dpo"},
        "data__train": [source | {"prompt": "q", "chosen": "good", "rejected": "bad"}],
        "training__globalBatchSize": 2,
        "checkpoint__initializeFrom": {"uri": str(folder / "base"), "step": 3},
    }


OBJECTIVES: dict[str, Prepare] = {"a teacher": prepare_distillation, "preferences": prepare_preferences}


@pytest.mark.slow
@pytest.mark.parametrize("prepare", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_killed_world_resumes_to_the_same_bits(
    crew: Crew, tmp_path: Path, text: Path, programs: Path, prepare: Prepare
) -> None:
    root, changes = tmp_path / "shared/checkpoints", prepare(tmp_path / "sources")
    config = make(root, text, training__steps=MANY, **changes)
    moments = Random(7)  # noqa: S311  # moments, not secrets
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
    end = max(trainer.losses) - 1  # its line may not be written
    assert len(lasts) == 2
    assert read_history(root, *lasts, end) == undisturbed(crew, root, text, programs, end, **changes)
