"""Worlds that change because slices come, go, or are wanted no longer."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, claim, drop_pod, edited, fail, kind, lose_node, set_pod, shrunk, trained
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.core.decide.child_maintenance import DeleteJobSet
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, EndWorld, Succeed, Wait
from trainingjob_operator.core.reasons import Reason

PULL_FAILURE = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]


def returning(waited: float) -> Scene:
    """Return a job that trains on slice 0; slice 1 has been ready for some seconds, and slice 2 is starting."""
    scene = Scene(plan=make_plan(1, 3)).form(0)
    return scene.place(1, 2).hear_slice(1, phase=Phase.IDLE, still=waited)


GROWTH: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "a slice is back": (shrunk, (DrainWorld, Reason.GROWING)),
    "a slice is back too soon": (lambda: shrunk(announced=59.0), (Wait, Reason.TRAINING)),
    "a slice is back without standbys": (
        lambda: shrunk().hear(1, 1, standby=False),
        (Wait, Reason.TRAINING),
    ),
    "a slice is back, the survivors have no standby": (
        lambda: shrunk().hear(0, 1, standby=False),
        (Wait, Reason.TRAINING),
    ),
    "a slice is back before the world made a step": (
        lambda: shrunk().train(step=10, restored=10),
        (Wait, Reason.TRAINING),
    ),
    "half a slice is back": (lambda: drop_pod(shrunk(), 1, 0), (Wait, Reason.TRAINING)),
    "a slice is back on a node that is not ready": (
        lambda: lose_node(shrunk(), 1, 0),
        (Wait, Reason.TRAINING),
    ),
    "another slice is starting": (lambda: returning(2.0), (Wait, Reason.TRAINING)),
    "another slice has been starting for long": (lambda: returning(31.0), (DrainWorld, Reason.GROWING)),
    "another slice cannot start": (
        lambda: set_pod(returning(2.0), 2, 0, phase="Pending", containerStatuses=PULL_FAILURE),
        (DrainWorld, Reason.GROWING),
    ),
    "left for growth": (
        lambda: shrunk().hear_slice(0, phase=Phase.LEFT),
        (Claim, (0, 1), Reason.RESIZED, False),
    ),
}


@pytest.mark.parametrize(("scene", "want"), GROWTH.values(), ids=GROWTH.keys())
def test_growth(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_growth_names_the_slice_that_returned() -> None:
    assert shrunk().decide() == DrainWorld(Reason.GROWING, "slice 1 is ready to join")
    assert claim(shrunk().hear_slice(0, phase=Phase.LEFT)).why == "slice 1 is added"


def test_world_contains_the_newest_earlier_checkpoint() -> None:
    """So it never starts from scratch when the folder is empty, by whichever operator its hosts are served."""
    fresh = Scene().place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    assert claim(fresh).world.committed == 0

    crashed = fail(trained().train(step=25, committed=20), 0, 0)
    formed = claim(crashed).world
    crashed.step()

    known = crashed.see().world
    assert known
    assert (formed.committed, known.committed) == (20, 20)


def test_several_slices_come_back_at_once() -> None:
    scene = Scene(plan=make_plan(1, 4)).form(0).place(1, 2, 3).hear_slice(1, 2, 3)

    assert scene.decide() == DrainWorld(Reason.GROWING, "slices 1 to 3 are ready to join")


def test_growth_by_many_slices_has_a_short_cause() -> None:
    scene = Scene(plan=make_plan(1, 256, hosts=1)).form(0).place(*range(1, 256)).hear_slice(*range(1, 256))
    assert kind(scene.step(600.0))[0] == DrainWorld

    assert claim(scene.hear_slice(0, phase=Phase.LEFT)).why == "slices 1 to 255 are added"


def test_world_keeps_its_slices_if_the_allowed_sizes_have_gaps() -> None:
    """Slices 1 and 2 train; slice 0 comes back, but three is no size: there is nothing to change."""
    scene = Scene(plan=make_plan(1, 4, allowed=(1, 2, 4)))
    scene.form(1, 2).place(0).hear_slice(0)

    assert kind(scene.decide()) == (Wait, Reason.TRAINING)


OTHER_SAVES = {"uri": "/shared/runs/demo", "save": {"everySteps": 777}}


MORE_STEPS = {"steps": 200, "globalBatchSize": 16, "sequenceLength": 32}


EPOCHS = {"epochs": 3, "globalBatchSize": 16, "sequenceLength": 32}


def edit_epochs(length: dict[str, Any]) -> Scene:
    """Return a job that has trained the 40 steps of its epochs, with another length."""
    scene = Scene(plan=make_plan(training=EPOCHS)).form(0, 1)
    scene.hear_slice(0, 1, phase=Phase.DONE, total_steps=40, progress=None, restored=40)
    return edited(scene, training={**length, "globalBatchSize": 16, "sequenceLength": 32})


def ended_by_itself(scene: Scene, slice_number: int, host: int) -> Scene:
    scene.pod(slice_number, host)["status"]["phase"] = "Succeeded"
    return scene


STOP = {"evaluation": "held-out", "loss": 2.5}
STOP_EDITS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing changed": ({"steps": 100, "stopAtLoss": STOP}, False),
    "there are more steps": ({"steps": 200, "stopAtLoss": STOP}, False),
    "the loss is lower": ({"steps": 100, "stopAtLoss": {**STOP, "loss": 2.3}}, True),
    "the loss is lower, and reached": ({"steps": 100, "stopAtLoss": {**STOP, "loss": 2.4}}, False),
    "no loss ends it any more": ({"steps": 100}, True),
    "no loss ends it any more, and there are no more steps": ({"steps": 10}, False),
    "another evaluation ends it": ({"steps": 100, "stopAtLoss": {**STOP, "evaluation": "code"}}, True),
}


def edit_stop(training: dict[str, Any]) -> Scene:
    """Return a job that ended at a loss of 2.35 after step 10, with another training section."""
    sizes = {"globalBatchSize": 16, "sequenceLength": 32}
    names = ("held-out", "code")
    texts = [{"name": name, "path": "/shared/held-out", "everySteps": 10} for name in names]
    scene = Scene(plan=make_plan(training={"steps": 100, "stopAtLoss": STOP, **sizes}, evaluation=texts))
    scene.form(0, 1).hear_slice(0, 1, phase=Phase.DONE, progress=Progress(step=10, evaluations={"held-out": 2.35}))
    return edited(scene, training={**training, **sizes}, evaluation=texts)


EDITS: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "other saves": (
        lambda: edited(trained(), checkpoint=OTHER_SAVES),
        (DrainWorld, Reason.EDITED),
    ),
    "fewer slices": (lambda: edited(trained(), 1, 1), (DrainWorld, Reason.EDITED)),
    "what no world carries": (lambda: edited(trained(), elastic={"growCooldown": "5m"}), (Wait, Reason.TRAINING)),
    "left for the edit": (
        lambda: edited(trained(), checkpoint=OTHER_SAVES).hear_slice(0, 1, phase=Phase.LEFT),
        (Claim, (0, 1), Reason.EDITED, False),
    ),
    "more steps, when all of the former are trained": (
        lambda: edited(trained(), training=MORE_STEPS).hear_slice(0, 1, phase=Phase.DONE),
        (Claim, (0, 1), Reason.EDITED, False),
    ),
    "epochs instead of steps, when all steps are trained": (
        lambda: edited(trained(), training=EPOCHS).hear_slice(0, 1, phase=Phase.DONE),
        (Claim, (0, 1), Reason.EDITED, False),
    ),
    "as many steps as the epochs had": (lambda: edit_epochs({"steps": 40}), (Succeed,)),
    "more steps than the epochs had": (lambda: edit_epochs({"steps": 41}), (Claim, (0, 1), Reason.EDITED, False)),
    "more steps, when a host has ended by itself": (
        lambda: ended_by_itself(edited(trained(), training=MORE_STEPS).hear_slice(0, 1, phase=Phase.DONE), 1, 0),
        (Succeed,),
    ),
    **{
        f"a loss ended training, and {name}": (
            lambda after=after: edit_stop(after),  # type: ignore[misc]
            (Claim, (0, 1), Reason.EDITED, False) if resumes else (Succeed,),
        )
        for name, (after, resumes) in STOP_EDITS.items()
    },
    "other saves, when all steps are trained": (
        lambda: edited(trained(), checkpoint=OTHER_SAVES).hear_slice(0, 1, phase=Phase.DONE),
        (Succeed,),
    ),
}


@pytest.mark.parametrize(("scene", "want"), EDITS.values(), ids=EDITS.keys())
def test_an_edit(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def capped(fewest: int, num_slices: int, lost: int, *sizes: int) -> Scene:
    """Return a job that lost a slice, continues on the others, and then gets other limits of slices."""
    scene = Scene(plan=make_plan(fewest, num_slices)).form(*range(num_slices))
    drop_pod(drop_pod(scene, lost, 0), lost, 1).step(1.0)
    scene.train(step=20, restored=10, committed=20).step(1.0)
    return edited(scene, *sizes)


def test_a_slice_above_a_lower_maximum_leaves_even_if_the_size_is_allowed() -> None:
    scene = capped(1, 4, 1, 1, 3)
    edit = "spec.slices.max (3) no longer includes slice 3"
    assert scene.step() == DrainWorld(Reason.EDITED, edit)
    assert scene.chores() == (), "the world saves first"

    scene.place(1).hear_slice(1, phase=Phase.IDLE, still=1000.0).hear_slice(0, 2, 3, phase=Phase.LEFT)
    decision = scene.step()

    assert kind(decision) == (Claim, (0, 1, 2), Reason.EDITED, False)
    assert decision.end.cause.message == edit  # type: ignore[union-attr]
    scene.train(step=21, restored=20, failure=None)
    assert [(type(chore), chore.jobset.slices.start) for chore in scene.chores()] == [(DeleteJobSet, 3)]  # type: ignore[union-attr]


def test_several_slices_above_a_lower_maximum_are_named() -> None:
    scene = capped(1, 5, 0, 1, 4)
    edited(scene, 1, 4)
    assert scene.decide() == DrainWorld(Reason.EDITED, "spec.slices.max (4) no longer includes slice 4")

    scene = capped(1, 5, 0, 1, 5)
    drop_pod(drop_pod(scene, 1, 0), 1, 1).step(1.0)
    scene.train(step=30, restored=20, committed=30).step(1.0)
    assert edited(scene, 1, 3).decide() == DrainWorld(
        Reason.EDITED, "spec.slices.max (3) no longer includes slices 3 to 4"
    )


def test_slices_above_a_lower_maximum_stay_while_the_minimum_needs_them() -> None:
    """Slices 0 and 2 train, and exactly two are allowed now. Slice 2 stays until slice 1 is back."""
    scene = capped(1, 3, 1, 2, 2)
    assert kind(scene.decide()) == (Wait, Reason.TRAINING)

    scene.place(1).hear_slice(1, phase=Phase.IDLE, still=1000.0)
    assert kind(scene.decide()) == (DrainWorld, Reason.EDITED)


def test_event_of_an_edit_names_the_changed_fields() -> None:
    assert "777" in claim(edited(trained(), checkpoint=OTHER_SAVES).hear_slice(0, 1, phase=Phase.LEFT)).why


def suspended(scene: Scene) -> Scene:
    scene.plan = make_plan(suspend=True)
    return scene


SUSPENSION: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "a training world": (lambda: suspended(trained()), (DrainWorld, Reason.SUSPENDING)),
    "a step that takes long": (
        lambda: suspended(trained().hear_slice(0, 1, still=29.0)),
        (DrainWorld, Reason.SUSPENDING),
    ),
    "a world that hangs": (
        lambda: suspended(trained().hear_slice(0, 1, still=31.0)),
        (EndWorld, Reason.SUSPENDED),
    ),
    "an evaluation, or a save, that takes eight minutes": (
        lambda: suspended(trained().hear_slice(0, 1, still=480.0, phase=Phase.EVALUATING)),
        (DrainWorld, Reason.SUSPENDING),
    ),
    "a host is cut off from the operator meanwhile": (
        lambda: suspended(trained().hear_slice(0, 1, still=15.0, phase=Phase.EVALUATING).hear(0, 1, age=7.0)),
        (DrainWorld, Reason.SUSPENDING),
    ),
    "a save that does not end": (
        lambda: suspended(trained(announced=2000.0, listening=2000.0)).hear_slice(
            0, 1, still=1501.0, phase=Phase.SAVING
        ),
        (EndWorld, Reason.SUSPENDED),
    ),
    "no host is heard of": (
        lambda: suspended(trained()).silence(0, age=299.0).silence(1, age=299.0),
        (DrainWorld, Reason.SUSPENDING),
    ),
    "no host is heard of for long": (
        lambda: suspended(trained()).silence(0, age=301.0).silence(1, age=301.0),
        (EndWorld, Reason.SUSPENDED),
    ),
    "some have left": (
        lambda: suspended(trained().hear(0, 0, phase=Phase.LEFT)),
        (DrainWorld, Reason.DRAINING_LAST_HOSTS),
    ),
    "all have left": (
        lambda: suspended(trained().hear_slice(0, 1, phase=Phase.LEFT)),
        (EndWorld, Reason.SUSPENDED),
    ),
    "a failure meanwhile": (lambda: suspended(fail(trained(), 0, 0)), (EndWorld, Reason.SUSPENDED)),
    "all steps are done meanwhile": (lambda: suspended(trained().hear_slice(0, 1, phase=Phase.DONE)), (Succeed,)),
}


@pytest.mark.parametrize(("scene", "want"), SUSPENSION.values(), ids=SUSPENSION.keys())
def test_suspension(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_suspension_counts_as_no_restart_and_training_resumes_after_it() -> None:
    scene = suspended(trained().hear_slice(0, 1, phase=Phase.LEFT))
    scene.step()
    assert scene.status.restarts.total == 0
    assert kind(scene.step()) == (Wait, Reason.SUSPENDED)

    scene.plan = make_plan()
    assert claim(scene.hear_slice(0, 1, phase=Phase.IDLE)).world.generation == 2


def test_job_below_its_minimum_waits_and_resumes_when_slices_return() -> None:
    scene = Scene(plan=make_plan(2, 2)).form(0, 1).silence(1).hear_slice(0, still=6.0)
    assert kind(scene.step()) == (EndWorld, Reason.WAITING_FOR_SLICES)
    scene.hear_slice(0, phase=Phase.IDLE, still=0.2)
    assert kind(scene.step(1.0)) == (Wait, Reason.WAITING_FOR_SLICES)
    scene.hear_slice(1, phase=Phase.IDLE)

    world = claim(scene).world

    assert (world.generation, world.slices) == (2, (0, 1))
    assert scene.status.restarts.total == 1


def test_next_world_has_the_slices_of_the_previous_one() -> None:
    """Slices 1 and 2 train and slice 0 is ready too, but three is no size: a crash is no reason to move."""
    scene = Scene(plan=make_plan(1, 4, allowed=(1, 2, 4)))
    fail(scene.form(1, 2).place(0).hear_slice(0), 2, 1)

    assert claim(scene).world.slices == (1, 2)


def test_suspension_of_a_hanging_world_is_no_restart_and_reports_its_cost() -> None:
    scene = suspended(trained().hear_slice(0, 1, still=31.0, committed=8))
    words = "suspended without a save: no host has made progress for 31 s. 2 steps since step 8 are lost"

    assert [(one.reason, one.message) for one in scene.happenings()] == [(Reason.SUSPENDED, words)]
    scene.step()

    assert scene.status.restarts.total == 0
    assert scene.status.attempts[-1].cause
    assert scene.status.attempts[-1].cause.message == words
