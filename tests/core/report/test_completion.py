"""Reports of completion, for any first step and any edit of the number of steps."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import make_plan
from tests.support.scenes import Scene, edited, fail
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.core.decide.decisions import Succeed

SIZES = {"globalBatchSize": 16, "sequenceLength": 32}


def begin(steps: int, restored: int, step: int, *, phase: Phase = Phase.TRAINING) -> Scene:
    """Return a job that began at a step, and is at another."""
    scene = Scene(plan=make_plan(training={"steps": steps, **SIZES}))
    return scene.form(0, 1, restored=restored, step=step).hear_slice(0, 1, phase=phase)


def edit(scene: Scene, steps: int) -> Scene:
    return edited(scene, training={"steps": steps, **SIZES})


def count(epochs: float, total: int | None, step: int, restored: int = 0, *, phase: Phase = Phase.TRAINING) -> Scene:
    """Return a job whose hosts have counted the steps of its epochs, or not yet."""
    scene = Scene(plan=make_plan(training={"epochs": epochs, **SIZES}))
    return scene.form(0, 1, restored=restored, step=step).hear_slice(0, 1, phase=phase, total_steps=total)


def stop(progress: Progress | None, restored: int = 0) -> Scene:
    """Return a job whose training may end at a held-out loss, and is done."""
    training = {"steps": 8, **SIZES, "stopAtLoss": {"evaluation": "held-out", "loss": 2.5}}
    evaluation = [{"name": "held-out", "path": "/shared/held-out", "everySteps": 2}]
    scene = Scene(plan=make_plan(training=training, evaluation=evaluation))
    scene.form(0, 1, restored=restored, step=restored + 1 if progress else restored)
    return scene.hear_slice(0, 1, progress=progress, phase=Phase.DONE)


ALL = "all steps are trained and saved"
STOPPED = "step 6 is saved, and training ended there: the loss of the evaluation `held-out`"
ENDS = {
    "trained from the beginning": (lambda: begin(4, 0, 4, phase=Phase.DONE), ALL),
    "trained from where a folder was": (lambda: begin(8, 4, 8, phase=Phase.DONE), ALL),
    "the folder holds more": (
        lambda: begin(2, 4, 4, phase=Phase.DONE),
        "nothing to train: the checkpoint is at step 4, and `spec.training.steps` is 2",
    ),
    "the folder holds as many": (
        lambda: begin(4, 4, 4, phase=Phase.DONE),
        "nothing to train: the checkpoint is at step 4, and `spec.training.steps` is 4",
    ),
    "the folder holds thousands": (
        lambda: begin(2000, 40_000, 40_000, phase=Phase.DONE),
        "nothing to train: the checkpoint is at step 40,000, and `spec.training.steps` is 2,000",
    ),
    "an edit came late": (
        lambda: edit(begin(8, 0, 6, phase=Phase.DONE), 4),
        f"{ALL}; step 6 was trained before `spec.training.steps` became 4",
    ),
    "all epochs are trained": (lambda: count(2, 40, 40, phase=Phase.DONE), ALL),
    "the folder holds as many steps as the epochs have": (
        lambda: count(2, 40, 40, restored=40, phase=Phase.DONE),
        "nothing to train: the checkpoint is at step 40, and the number of steps of `spec.training.epochs` (2) is 40",
    ),
    "the folder holds more steps than the epochs have": (
        lambda: count(0.5, 10, 40, restored=20, phase=Phase.DONE),
        f"{ALL}; step 40 was trained before the number of steps of `spec.training.epochs` (0.5) became 10",
    ),
    "the hosts have not told how many steps the epochs have": (lambda: count(2, None, 40, phase=Phase.DONE), ALL),
    "a held-out loss ended training": (
        lambda: stop(Progress(step=6, step_seconds=0.5, evaluations={"held-out": 2.4567})),
        f"{STOPPED} is 2.457, at most `spec.training.stopAtLoss.loss` (2.5)",
    ),
    "a held-out loss had ended training before the world": (
        lambda: stop(None, restored=6),
        f"{STOPPED} is at most `spec.training.stopAtLoss.loss` (2.5)",
    ),
    "a held-out loss would have ended training at the last step": (
        lambda: stop(Progress(step=8, evaluations={"held-out": 2.4567})),
        ALL,
    ),
    "the world before trained them": (
        lambda: again(begin(8, 0, 6), restored=8),
        ALL,
    ),
}


def again(scene: Scene, restored: int) -> Scene:
    """Let the world end, and the next one find that the last step was saved."""
    fail(scene, 1, 1).step()
    return scene.train(step=restored, restored=restored, phase=Phase.DONE, failure=None)


@pytest.mark.parametrize(("make", "words"), ENDS.values(), ids=ENDS.keys())
def test_completion_reports_the_trained_steps(make: type[Scene], words: str) -> None:
    scene = make()

    (happening,) = [one for one in scene.happenings() if one.reason == "Completed"]
    assert isinstance(scene.step(), Succeed)

    assert happening.message == words
    (verdict,) = [one for one in scene.status.conditions if one.type == "Succeeded"]
    assert verdict.message == words


def test_no_time_is_left_to_a_job_that_ended_at_a_loss() -> None:
    scene = stop(Progress(step=6, step_seconds=0.5, evaluations={"held-out": 2.4567}))
    scene.step()

    assert scene.status.progress
    assert (scene.status.display.step, scene.status.progress.eta_seconds) == ("6/8", None)


def check(scene: Scene) -> None:
    """Check that no report contains more steps than there are."""
    progress = scene.status.progress
    assert progress
    assert progress.step <= progress.of
    assert 0 <= progress.percent <= 100
    assert progress.percent == pytest.approx(100 * progress.step / progress.of, abs=0.051)  # it is rounded to a tenth
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", scene.status.display.step)
    assert match
    assert (int(match[1]), int(match[2])) == (progress.step, progress.of)


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (2, 4, 8), (100, 1, 50)], ids=str)
def test_progress_follows_an_edit_at_once(sizes: Sequence[int]) -> None:
    scene = begin(sizes[0], 0, 3)
    for steps in sizes:
        edit(scene, steps).step(1.0)
        check(scene)
        assert scene.status.progress
        assert scene.status.progress.of == max(steps, 3)


def test_progress_follows_an_edit_where_no_world_lives() -> None:
    scene = begin(8, 0, 4)
    scene.news.clear()
    edit(scene, 16).step(1.0)

    check(scene)
    assert scene.status.progress
    assert (scene.status.progress.of, scene.status.progress.percent) == (16, 25.0)


@pytest.mark.thorough
@given(st.integers(1, 60), st.integers(0, 80), st.integers(0, 80), st.lists(st.integers(1, 90), max_size=3))
def test_reported_steps_never_exceed_the_total(steps: int, restored: int, made: int, edits: list[int]) -> None:
    scene = begin(steps, restored, restored + made)
    check(scene)
    for number in edits:
        edit(scene, number).step(1.0)
        check(scene)
    scene.hear_slice(0, 1, progress=Progress(step=restored + made + 1), phase=Phase.DONE).step(1.0)
    check(scene)


def test_progress_of_epochs_begins_with_the_count_of_the_hosts() -> None:
    scene = count(2, None, 3)
    scene.step(1.0)
    progress = scene.status.progress
    assert progress
    assert (progress.step, progress.of, progress.percent, progress.eta_seconds) == (3, None, 0.0, None)
    assert scene.status.display.step == "3/?"

    scene.hear_slice(0, 1, total_steps=40, progress=Progress(step=4, step_seconds=0.5)).step(1.0)
    progress = scene.status.progress
    assert progress
    assert (progress.step, progress.of, progress.percent, progress.eta_seconds) == (4, 40, 10.0, 18)
    assert scene.status.display.step == "4/40"


def test_the_count_of_the_hosts_outlives_their_reports() -> None:
    scene = count(2, 40, 3)
    scene.step(1.0)
    scene.news.clear()
    scene.step(1.0)

    assert scene.status.progress
    assert (scene.status.progress.of, scene.status.display.step) == (40, "3/40")
    edit(scene, 60).step(1.0)
    assert scene.status.progress.of == 60
