"""Evaluations that a world left out: the next one owes them."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.tiny import make_spec
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.monitoring.evaluate_programs import EvaluateProgram
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.objectives.scoring import Scores, ScoreSums
from trainingjob_trainer.state import Signal

EVALUATIONS = [
    {"name": "often", "path": "/held-out", "everySteps": 10},
    {"name": "seldom", "path": "/held-out", "everySteps": 20},
]


def make(root: Path, **changes: Any) -> Evaluator:
    spec = TrainingJobSpec.model_validate(make_spec(root, root, evaluation=EVALUATIONS, **changes))
    unused: Any = None
    return Evaluator(spec, {}, unused, {}, unused)


OWED: dict[str, tuple[int, set[str] | None, bool]] = {
    "a step that was saved before its evaluation": (20, set(), True),
    "one of two was made": (20, {"often"}, True),
    "all that were due were made": (10, {"often"}, False),
    "none is due": (15, set(), False),
    "nothing was trained": (0, None, False),
    "nothing was trained, and another job's folder is taken over": (0, set(), False),
    "a step that is in memory alone": (20, None, False),
    "the last step, whatever its number": (6, set(), True),
    "the last step, in memory alone": (6, None, True),
}


@pytest.mark.parametrize(("step", "evaluated", "want"), OWED.values(), ids=OWED.keys())
def test_evaluation_is_due_if_a_step_was_saved_without_it(
    step: int, evaluated: set[str] | None, want: bool, tmp_path: Path
) -> None:
    assert make(tmp_path).is_missing(step, evaluated) is want


STOP = {"evaluation": "seldom", "loss": 2.5}
OWED_BY_A_STOP: dict[str, tuple[int, dict[str, float] | None, bool]] = {
    "a step in memory alone, after which training may have ended": (20, None, True),
    "a step in memory alone, after which the loss of another evaluation was measured": (10, None, False),
    "a saved step with its losses": (20, {"often": 2.0, "seldom": 2.0}, False),
    "nothing was trained": (0, None, False),
}


@pytest.mark.parametrize(("step", "losses", "want"), OWED_BY_A_STOP.values(), ids=OWED_BY_A_STOP.keys())
def test_evaluation_that_may_have_ended_training_is_due_again(
    step: int, losses: dict[str, float] | None, want: bool, tmp_path: Path
) -> None:
    assert make(tmp_path, training__stopAtLoss=STOP).is_missing(step, losses) is want


@pytest.mark.parametrize(("step", "want"), [(20, True), (10, False), (6, True), (0, False)])
def test_evaluation_that_ranks_the_best_is_due_again_for_a_step_in_memory_alone(
    step: int, *, want: bool, tmp_path: Path
) -> None:
    evaluator = make(tmp_path, checkpoint__keep={"last": 1, "best": {"evaluation": "seldom"}})

    assert evaluator.is_missing(step, None) is want


@pytest.mark.parametrize(
    ("losses", "want"),
    [
        ({"seldom": 2.5}, True),
        ({"seldom": 2.51, "often": 1.0}, False),
        ({"often": 1.0}, False),
        ({"seldom": float("nan")}, False),
        ({}, False),
    ],
)
def test_training_ends_at_the_loss_of_its_evaluation(losses: dict[str, float], want: bool, tmp_path: Path) -> None:
    assert make(tmp_path, training__stopAtLoss=STOP).ends_training(losses) is want
    assert not make(tmp_path).ends_training(losses)


class Counted:
    """Batches of which each has a loss of one more than the one before it, and a program that returns it."""

    def evaluate(self, params: object, batch: float, requested: int, reference: object) -> tuple[ScoreSums, int]:
        sums: Any = ScoreSums(batch, 2.0, 1.0, 4.0, {"reward_margin": 10 * batch})
        return sums, requested

    def count_held_out(self, index: object, most: object) -> int:
        return 3

    def held_out_batch(self, index: object, number: int, *, shape: object) -> float:
        assert shape == (1, 1, 4)
        return float(number)

    def signals(self, requested: int) -> int:
        return requested


@pytest.mark.parametrize(("asks", "want", "reported"), [([0, 0, 0], 0.5, 3), ([0, 1], None, 2)])
def test_each_batch_is_reported_before_it_begins(
    asks: list[int], want: float | None, reported: int, tmp_path: Path
) -> None:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path, tmp_path, evaluation=EVALUATIONS[:1]))
    parts: Any = Counted()
    programs = {"often": EvaluateProgram(parts.evaluate, (1, 1, 4))}
    evaluator = Evaluator(spec, {"often": parts}, parts, programs, parts)
    printed: list[str] = []

    measured = evaluator.measure(10, None, lambda: Signal(asks.pop(0)), printed.append)  # type: ignore[arg-type]

    assert measured == (
        None if want is None else {"often": Scores(want, 0.5, 3.0 / math.log(2) / 12.0, {"reward_margin": 5.0})}
    )
    assert printed == [f"batch {number + 1} of the evaluation `often`" for number in range(reported)]
