"""Training that ends at a held-out loss: the step is saved, all hosts end, and they end again after a restart."""

from pathlib import Path

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.recorded_loop import Notes
from tests.support.trainer.tiny import make_world
from tests.trainer.test_leaving import evaluate, make
from trainingjob_api.protocol import Phase
from trainingjob_api.world import Span
from trainingjob_trainer.state import Signal

ANY_LOSS = {"evaluation": "held", "loss": 1000}


STOPS: dict[str, tuple[Notes, str]] = {
    "a step whose held-out loss ends training is saved, and is the last": (
        Notes(9, evaluate=2, stop=3),
        "step 1, step 2, report 1, report 2, evaluate 2, step 3, step 4, report 3, report 4, evaluate 4, save 4, done",
    ),
    "replicas are compared before the step that ends training is saved": (
        Notes(9, evaluate=2, stop=2, compare=9),
        "step 1, step 2, report 1, report 2, evaluate 2, compare 2, save 2, done",
    ),
    "replicas that were compared are not compared again at the end": (
        Notes(9, evaluate=2, stop=2, compare=2, save=2),
        "step 1, step 2, report 1, report 2, compare 2, evaluate 2, save 2, done",
    ),
    "the step that ends training is tried until it is saved": (
        Notes(9, evaluate=2, stop=2, failing=(2,)),
        "step 1, step 2, report 1, report 2, evaluate 2, save 2, insist 2, done",
    ),
    "who is asked to move at the step that ends training is done": (
        Notes(9, evaluate=2, stop=2, asked={2: Signal.RESCALE}),
        "step 1, step 2, report 1, report 2, snapshot 2, evaluate 2, save 2, done",
    ),
    "who is asked to leave at such a step owes the evaluation": (
        Notes(9, evaluate=2, stop=2, asked={2: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "a restored step whose held-out loss ends training is the last": (
        Notes(9, evaluate=2, stop=2, restored=(4, {"news": 4})),
        "done",
    ),
    "training resumes from a restored step with another held-out loss": (
        Notes(6, evaluate=9, stop=5, restored=(4, {"news": 4})),
        "step 5, step 6, report 5, report 6, save 6, done",
    ),
}


@pytest.mark.parametrize(("notes", "want"), STOPS.values(), ids=STOPS.keys())
def test_the_order_of_a_step_that_ends_training(notes: Notes, want: str, thawed: None) -> None:
    assert ", ".join(notes.train()) == want


RESUMED: dict[str, tuple[Notes, str]] = {
    "a saved step whose missing evaluation ends training": (
        Notes(9, stop=4, restored=(4, {})),
        "evaluate 4, done",
    ),
    "a step in memory alone whose evaluation ends training is saved": (
        Notes(9, stop=4, restored=(4, None)),
        "evaluate 4, save 4, done",
    ),
    "a step whose evaluation does not end training": (
        Notes(6, stop=5, restored=(4, None)),
        "evaluate 4, step 5, step 6, report 5, report 6, save 6, done",
    ),
    "a step in memory alone that is among the best is saved with its loss": (
        Notes(6, best=(4,), restored=(4, None)),
        "evaluate 4, save 4, step 5, step 6, report 5, report 6, save 6, done",
    ),
    "a saved step whose missing evaluation ranks it among the best is not saved again": (
        Notes(6, best=(4,), restored=(4, {})),
        "evaluate 4, step 5, step 6, report 5, report 6, save 6, done",
    ),
    "a step of other replicas that is among the best is left to them": (
        Notes(6, rounds=2, joins=4, best=(4,), restored=(2, {"news": 2})),
        "join 4, evaluate 4, step 5, step 6, report 5, report 6, end round 6, save 6, done",
    ),
    "who is asked to leave meanwhile leaves a saved step": (
        Notes(9, stop=4, restored=(4, {}), leave="evaluate 4"),
        "break off 4, left",
    ),
    "who is asked to leave meanwhile saves a step that is in memory alone": (
        Notes(9, stop=4, restored=(4, None), leave="evaluate 4"),
        "break off 4, save 4, left",
    ),
    "a replica that joins after the last step saves it, and is done": (
        Notes(6, rounds=2, joins=6, restored=(4, {"news": 4})),
        "join 6, evaluate 6, save 6, done",
    ),
    "a replica that joins after the step that has ended training saves it, and is done": (
        Notes(9, rounds=2, joins=4, stop=4, restored=(2, {"news": 2})),
        "join 4, evaluate 4, save 4, done",
    ),
    "a replica that must leave while it evaluates a step of the others leaves that step to them": (
        Notes(9, rounds=2, joins=4, restored=(2, None), leave="evaluate 4"),
        "join 4, break off 4, left",
    ),
}


@pytest.mark.parametrize(("notes", "want"), RESUMED.values(), ids=RESUMED.keys())
def test_the_evaluation_of_a_restored_step(notes: Notes, want: str, thawed: None) -> None:
    assert ", ".join(notes.resume()) == want


@pytest.mark.slow
def test_all_hosts_end_at_the_same_step_and_a_restart_trains_none(crew: Crew, tmp_path: Path, text: Path) -> None:
    programs = tmp_path / "programs"
    config = make(tmp_path, text, evaluation=evaluate(text, 2), training__stopAtLoss=ANY_LOSS)
    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert (trainer.phases[-1], trainer.committed, max(trainer.losses)) == (Phase.DONE, [3], 3)

    crew.prepare(2)
    lineage = (Span(generation=1, first=1, last=3),)
    again = crew.start(config, make_world(2, 2, lineage), programs)
    for trainer in again:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert (trainer.phases[-1], trainer.committed, trainer.losses) == (Phase.DONE, [], {})
        assert Phase.EVALUATING not in trainer.phases

    crew.prepare(2)
    lower = make(tmp_path, text, evaluation=evaluate(text, 2), training__stopAtLoss={**ANY_LOSS, "loss": 0.001})
    resumed = crew.start(lower, make_world(3, 2, (*lineage, Span(generation=2, first=4))), programs)
    for trainer in resumed:
        trainer.wait_for_step(5)
