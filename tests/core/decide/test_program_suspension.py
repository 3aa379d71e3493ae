"""The suspension of a program: only its reports of saved steps count, because it may ignore the request to save."""

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import trained
from trainingjob_api.protocol import Phase

PROGRAM = {"command": ["python", "train.py"]}
SAVED = {
    "a step": (5, "released all pods; of the steps that the program has reported as saved, step 5 is the newest one"),
    "no step": (None, "released all pods; of the steps that the program has reported as saved, there is none"),
}


@pytest.mark.parametrize(("committed", "message"), SAVED.values(), ids=SAVED.keys())
def test_suspended_program_names_its_newest_saved_step(committed: int | None, message: str) -> None:
    scene = trained(plan=make_plan(program=PROGRAM)).hear_slice(0, 1, committed=committed, phase=Phase.LEFT)
    scene.plan = make_plan(program=PROGRAM, suspend=True)

    scene.step()

    cause = scene.status.attempts[-1].cause
    assert cause
    assert (cause.reason, cause.message) == ("Suspended", message)


def test_suspended_trainer_has_saved() -> None:
    scene = trained().hear_slice(0, 1, committed=10, phase=Phase.LEFT)
    scene.plan = make_plan(suspend=True)

    scene.step()

    cause = scene.status.attempts[-1].cause
    assert cause
    assert cause.message == "saved the training state and released all pods"
