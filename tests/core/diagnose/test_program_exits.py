"""The end of a program: exit code 0 counts only if all hosts end together."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, fail, kind
from trainingjob_api.protocol import FailureReason, Phase, Progress
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, Succeed, Wait
from trainingjob_operator.core.reasons import Reason


def silent() -> Scene:
    """Return two slices whose program has reported no step."""
    scene = Scene(plan=make_plan(program={"command": ["train"], "steps": 50})).form(0, 1)
    return scene.train(step=0, progress=None, restored=None, still=7200.0)


def reporting() -> Scene:
    """Return two slices whose program has reported steps, and none for two hours."""
    scene = silent().train(step=3, restored=0, still=7200.0)
    return scene.hear_slice(0, 1, progress=Progress(step=3, typical_seconds=1.0), still=7200.0)


def done(scene: Scene, *hosts: tuple[int, int], still: float = 1.0) -> Scene:
    for slice_number, host in hosts:
        scene.hear(slice_number, host, phase=Phase.DONE, still=still)
    return scene


ALL = ((0, 0), (0, 1), (1, 0), (1, 1))
SCENES: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "a program without steps works for hours": (silent, (Wait, Reason.TRAINING)),
    "a program that has reported steps hangs": (
        reporting,
        (Claim, (0, 1), Reason.HUNG_HOST, True),
    ),
    "all hosts end": (lambda: done(silent(), *ALL), (Succeed,)),
    "one host has just ended": (lambda: done(silent(), (0, 1)), (Wait, Reason.FINISHING)),
    "one host ended early": (
        lambda: done(silent(), (0, 1), still=61.0),
        (Claim, (0, 1), FailureReason.CRASH, True),
    ),
    "one host ended and another one crashed": (
        lambda: fail(done(silent(), (0, 1)), 1, 0),
        (Claim, (0, 1), FailureReason.CRASH, True),
    ),
    "three hosts ended and the last one crashed": (
        lambda: fail(done(silent(), *ALL[:3]), 1, 1),
        (Claim, (0, 1), FailureReason.CRASH, True),
    ),
}


@pytest.mark.parametrize(("build", "expected"), SCENES.values(), ids=SCENES.keys())
def test_the_end_of_a_program(build: Callable[[], Scene], expected: tuple[object, ...]) -> None:
    scene = build()

    assert kind(scene.decide()) == expected


def test_an_early_exit_names_the_host() -> None:
    decision = done(silent(), (0, 1), still=61.0).decide()

    assert isinstance(decision, Claim)
    assert decision.end
    assert (decision.end.cause.slice, decision.end.cause.host, decision.end.cause.exit_code) == (0, 1, 0)
    assert decision.end.cause.message == (
        "host 1 of slice 0: the program ended with exit code 0, but 3 hosts still work 1 m 1 s later. It must end on "
        "all hosts together, after the last step"
    )


@pytest.mark.parametrize(
    ("progress", "words"),
    [({}, "it has reported no step yet"), ({"progress": {"pattern": "(?P<step>x)"}}, "its log names no step yet")],
)
def test_the_status_names_a_program_without_steps(progress: dict[str, Any], words: str) -> None:
    scene = Scene(plan=make_plan(program={"command": ["train"], **progress})).form(0, 1)
    scene.train(step=0, progress=None, restored=None)
    scene.step()
    messages = {one.type: one.message for one in scene.status.conditions}

    assert messages["Running"] == f"running the program on 2 slices; {words}"


def test_a_program_without_steps_grows_at_restarts_only() -> None:
    """Without a step, nothing shows that a larger world would not be interrupted again before it saves anything."""
    scene = silent().silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.train(step=0, progress=None, restored=None, still=6.0).hear_slice(1, phase=Phase.IDLE, still=1000.0)
    scene.step(7200.0)
    (degraded,) = (one for one in scene.status.conditions if one.type == "Degraded")

    assert scene.see().current_slices == (0,)
    assert degraded.message == (
        "the other slices are ready and join at the next restart, or after the first step that the program reports. "
        "`trainingjob suspend` and `trainingjob resume` restart it on all slices"
    )
    fail(scene, 0, 0)
    assert kind(scene.decide()) == (Claim, (0, 1), FailureReason.CRASH, True)


def test_a_program_that_reports_steps_grows() -> None:
    scene = silent().silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.train(step=1, restored=0).hear_slice(1, phase=Phase.IDLE, still=1000.0)

    assert kind(scene.decide())[:2] == (DrainWorld, Reason.GROWING)


def test_a_program_that_has_ended_is_not_started_again() -> None:
    scene = done(silent(), *ALL)
    scene.step()

    assert scene.status.phase == "Succeeded"
    messages = {one.message for one in scene.status.conditions if one.reason == Reason.COMPLETED}
    assert "the program has ended with exit code 0 on all hosts" in messages
    assert (scene.status.display.step, scene.status.display.mesh) == ("10/50", "")
    assert scene.status.plan
    assert (scene.status.plan.parameters, scene.status.plan.network) == (0, "")
