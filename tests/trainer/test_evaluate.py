"""Evaluations that a world left out: the next one owes them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.meeting import together
from tests.trainer.tiny import UID, make_spec
from trainingjob_api.job import TrainingJobSpec
from trainingjob_trainer.evaluate import Evaluator
from trainingjob_trainer.integrity import Integrity, write_integrity
from trainingjob_trainer.signature import Asked
from trainingjob_trainer.world import Peers

EVALUATIONS = [
    {"name": "often", "path": "/held-out", "everySteps": 10},
    {"name": "seldom", "path": "/held-out", "everySteps": 20},
]


class Untraced:
    """Steps that compile nothing."""

    def compile_evaluate(self, programs: object, shape: object) -> object:
        return self


def make(root: Path, **changes: Any) -> Evaluator:
    spec = TrainingJobSpec.model_validate(make_spec(root, root, evaluation=EVALUATIONS, **changes))
    parts: Any = Untraced()
    parts.shape = ()
    return Evaluator(spec, {}, parts, parts, parts)


def save(root: Path, step: int, *evaluated: str, lineage: int = 0) -> None:
    folder = root / f"lineage-{lineage}" / str(step)
    folder.mkdir(parents=True)
    losses = dict.fromkeys(evaluated, 2.0)
    known = {"job_uid": UID, "generation": 1, "step": step, "lineage": lineage, "data": "", "state": "", "files": {}}
    write_integrity(folder, Integrity.model_validate({**known, "evaluations": losses}))


OWED: dict[str, tuple[int, Callable[[Path], None], bool]] = {
    "a step that was saved before its evaluation": (20, lambda root: save(root, 20), True),
    "one of two was made": (20, lambda root: save(root, 20, "often"), True),
    "all that were due were made": (10, lambda root: save(root, 10, "often"), False),
    "none is due": (15, lambda root: save(root, 15), False),
    "nothing was trained": (0, lambda root: None, False),
    "a step that is in memory alone": (20, lambda root: save(root, 10), False),
    "a save that never finished": (20, lambda root: (root / "lineage-0/20").mkdir(parents=True), False),
    "the last step, whatever its number": (6, lambda root: save(root, 6), True),
}


@pytest.mark.parametrize(("step", "prepare", "want"), OWED.values(), ids=OWED.keys())
def test_an_evaluation_is_owed_where_a_step_was_saved_without(
    step: int, prepare: Callable[[Path], None], want: bool, tmp_path: Path
) -> None:
    prepare(tmp_path)

    assert make(tmp_path).is_owed(step, tmp_path, Peers(0, 1)) is want


@pytest.mark.parametrize(("of", "want"), [(None, True), (1, True), (2, False)])
def test_a_step_that_another_world_saved_under_its_number_owes_nothing(
    of: int | None, want: bool, tmp_path: Path
) -> None:
    save(tmp_path, 10)

    assert make(tmp_path).is_owed(10, tmp_path, Peers(0, 1), of=of) is want


def test_the_newest_lineage_tells(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 10, "often", lineage=1)

    assert not make(tmp_path).is_owed(10, tmp_path, Peers(0, 1))


def test_all_processes_hear_the_same_whatever_each_of_them_sees(tmp_path: Path) -> None:
    save(tmp_path, 10)

    def take_part(peers: Peers) -> bool:
        return make(tmp_path).is_owed(10, tmp_path / ("stale" if peers.process else ""), peers)

    assert together(2, take_part) == [True, True]


class Counted:
    """Batches of which each has a loss of one more than the one before it, and a program that returns it."""

    shape = ()

    def compile_evaluate(self, programs: object, shape: object) -> Any:
        return lambda params, batch, asked: (batch, 1.0, asked)

    def count_held_out(self, index: object, most: object) -> int:
        return 3

    def held_out(self, index: object, number: int) -> float:
        return float(number)

    def controls(self, asked: int) -> Any:
        return SimpleNamespace(asked=asked)


@pytest.mark.parametrize(("asks", "want", "told"), [([0, 0, 0], {"often": 1.0}, 3), ([0, 1], None, 2)])
def test_each_batch_is_told_before_it_is_entered(
    asks: list[int], want: dict[str, float] | None, told: int, tmp_path: Path
) -> None:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path, tmp_path, evaluation=EVALUATIONS[:1]))
    parts: Any = Counted()
    evaluator = Evaluator(spec, {"often": parts}, parts, parts, parts)
    said: list[str] = []

    measured = evaluator.measure(10, None, lambda: Asked(asks.pop(0)), said.append)  # type: ignore[arg-type]

    assert measured == want
    assert said == [f"batch {number + 1} of the evaluation `often`" for number in range(told)]
