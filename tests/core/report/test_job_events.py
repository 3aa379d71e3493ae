"""Directives for hosts and events for users, after each decision."""

from collections.abc import Callable

import pytest

from tests.support.builders import jobset_manifest, make_plan
from tests.support.scenes import Scene, drop_pod, fail, trained
from trainingjob_api.protocol import Damage, Directive, Phase
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.report.job_events import make_directive


def suspended(scene: Scene) -> Scene:
    scene.plan = make_plan(suspend=True)
    return scene


def grown() -> Scene:
    return Scene().form(0).place(1).hear_slice(1)


CASES: dict[str, tuple[Callable[[], Scene], Directive, int | None, list[tuple[bool, str, str]]]] = {
    "nothing is there": (Scene, Directive.WAIT, None, []),
    "the first world": (
        lambda: Scene().place(0, 1).hear_slice(0, 1),
        Directive.TRAIN,
        1,
        [(False, "Formed", "generation 1 trains on slices 0, 1: 2 slices ready")],
    ),
    "all is well": (trained, Directive.TRAIN, 1, []),
    "a crash": (
        lambda: fail(trained(), 1, 1),
        Directive.TRAIN,
        2,
        [(True, "Crash", "ValueError: bad"), (False, "Formed", "generation 2 trains on slices 0, 1: ValueError: bad")],
    ),
    "a slice is back": (grown, Directive.LEAVE, 1, [(False, "Growing", "slice 1 is ready to join")]),
    "too few are left": (
        lambda: Scene(plan=make_plan(2, 2)).form(0, 1).silence(1).hear_slice(0, still=6.0),
        Directive.WAIT,
        None,
        [
            (True, "HeartbeatLost", "host 0 of slice 1: heartbeat lost and its peers stopped making progress"),
            (False, "WaitingForSlices", "1 of at least 2 slices ready"),
        ],
    ),
    "suspended": (
        lambda: suspended(trained()),
        Directive.LEAVE,
        1,
        [(False, "Suspending", "saving the training state before all pods are released")],
    ),
    "suspended and saved": (
        lambda: suspended(trained().hear_slice(0, 1, phase=Phase.LEFT)),
        Directive.WAIT,
        None,
        [(False, "Suspended", "`spec.suspend` is true")],
    ),
    "all is done": (
        lambda: trained().hear_slice(0, 1, phase=Phase.DONE),
        Directive.FINISH,
        None,
        [(False, "Completed", "all steps are trained and saved")],
    ),
    "given up": (
        lambda: fail(trained(), 1, 1, fatal=True),
        Directive.FINISH,
        None,
        [
            (True, "Crash", "ValueError: bad"),
            (True, "Crash", "host 1 of slice 1 (node node-1-1, exit code 1): ValueError: bad"),
        ],
    ),
}


@pytest.mark.parametrize(("scene", "directive", "generation", "reported"), CASES.values(), ids=CASES.keys())
def test_announcements(
    scene: Callable[[], Scene], directive: Directive, generation: int | None, reported: list[tuple[bool, str, str]]
) -> None:
    at = scene()
    seen, decision = at.see(), at.decide()
    happenings = at.happenings()
    at.step()
    bulletin = make_directive(at.plan, seen, decision, at.status)

    assert bulletin.directive is directive
    assert (bulletin.world.generation if bulletin.world else None) == generation
    assert [(one.is_warning, one.reason, one.message) for one in happenings] == reported


def test_request_to_drain_is_one_event() -> None:
    scene = grown()
    scene.step()
    assert scene.status.phase == "Resizing"

    assert scene.happenings() == ()


def test_rejection_is_an_event() -> None:
    scene = Scene()
    happenings = scene.happenings(ObjectProblem("CreationRejected", "exceeded quota"))

    assert [(one.is_warning, one.reason, one.message) for one in happenings] == [
        (True, "CreationRejected", "exceeded quota")
    ]


def test_a_job_is_suspended_when_all_its_pods_are_gone() -> None:
    scene = suspended(trained().hear_slice(0, 1, phase=Phase.LEFT))
    scene.step()
    stages = [scene.status.phase]
    scene.jobsets.clear()
    scene.step()
    stages.append(scene.status.phase)
    scene.pods.clear()
    scene.jobsets[0] = jobset_manifest(scene.plan, 0, owner="another")
    scene.step()
    stages.append(scene.status.phase)

    assert stages == ["Suspending", "Suspending", "Suspended"]
    truth = {one.type: (one.status, one.reason) for one in scene.status.conditions}
    assert truth["Suspended"] == ("True", "Suspended")
    assert truth["Queued"] == ("False", "Suspended")


def test_source_of_initial_parameters_is_one_event() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    scene.step()
    scene.train(step=1, restored=0, initialized_from="step 5,000 of /shared/base")
    first = scene.happenings()
    scene.step()

    assert [(one.is_warning, one.reason, one.message) for one in first] == [
        (False, "Initialized", "initialized with the parameters of step 5,000 of /shared/base")
    ]
    assert scene.happenings() == ()


def test_damaged_checkpoint_is_one_event_after_another_step_is_restored() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    scene.step()
    damage = (Damage(step=20, message="data/0 differs"),)
    scene.train(step=10, restored=10, damaged=damage)
    first = scene.happenings()
    scene.step()

    assert [(one.is_warning, one.reason, one.message) for one in first] == [
        (True, "CheckpointDamaged", "checkpoint of step 20 is damaged and was skipped: data/0 differs")
    ]
    assert scene.happenings() == ()
    assert Scene().happenings() == ()


def test_hosts_get_the_outcome_of_the_job() -> None:
    scene = drop_pod(trained().hear_slice(0, 1, phase=Phase.DONE), 1, 1)
    scene.step()

    bulletin = make_directive(scene.plan, scene.see(), scene.decide(), scene.status)

    assert bulletin.outcome == "Succeeded: Completed: all steps are trained and saved"
    forged = scene.status.model_copy(update={"conditions": ()})
    assert make_directive(scene.plan, scene.see(), scene.decide(), forged).outcome == "Ended"
