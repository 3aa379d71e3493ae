"""Validation of an edit, by the state of the job."""

from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_operator.core.validation.validate_update import check_update, warn_of_update

WORLD = {"generation": 3, "coordinator": "10.0.0.1:5000", "members": "hash", "since": "2026-11-21T12:00:00Z"}
STATUS = {"world": WORLD, "progress": {"step": 1200, "of": 5000}}
OVER = {**STATUS, "completionTime": "2026-11-21T12:00:00Z"}


def job(steps: int = 5000, status: Any = STATUS, **spec: Any) -> dict[str, Any]:
    return {"spec": {"training": {"steps": steps}, **spec}, "status": status}


BEHIND = (
    "spec.training.steps: 1199 must be at least 1,200, the current step of the job. At the current step, the job saves "
    "and succeeds. Nearest legal value: 1200."
)
STEPS = {
    "more": (8000, STATUS, []),
    "fewer, still ahead": (1201, STATUS, []),
    "the step that it is at": (1200, STATUS, []),
    "behind": (
        1199,
        STATUS,
        [BEHIND],
    ),
    "before any step": (1, {}, []),
}


@pytest.mark.parametrize(("steps", "status", "want"), STEPS.values(), ids=STEPS.keys())
def test_a_job_cannot_end_before_where_it_is(steps: int, status: Any, want: list[str]) -> None:
    assert [str(problem) for problem in check_update(job(status=status), job(steps))] == want


def test_a_job_that_is_behind_may_be_edited_elsewhere() -> None:
    assert list(check_update(job(1199), job(1199, suspend=True))) == []


TRAINED = (
    "spec.training.epochs: 0.5 must be at least 0.72, which the job has trained by step 1,200. With fewer epochs, the "
    "job saves and succeeds at its current step. Nearest legal value: 0.72."
)
SIZES = {"batchSchedule": [{"fromStep": 100, "globalBatchSize": 64}]}
EPOCHS: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "more": ({"epochs": 4}, STATUS, []),
    "fewer, still ahead": ({"epochs": 2}, STATUS, []),
    "nearest": ({"epochs": 0.72}, STATUS, []),
    "behind": ({"epochs": 0.5}, STATUS, [TRAINED]),
    "behind, with other batch sizes": ({"epochs": 0.5, **SIZES}, STATUS, []),
    "the text is not counted": ({"epochs": 0.5}, {**STATUS, "progress": {"step": 1200}}, []),
    "steps instead": ({"steps": 3000}, STATUS, []),
    "no number": ({"epochs": "x"}, STATUS, []),
}


@pytest.mark.parametrize(("training", "status", "want"), EPOCHS.values(), ids=EPOCHS.keys())
def test_a_job_cannot_end_before_its_epochs(training: dict[str, Any], status: Any, want: list[str]) -> None:
    old = {"spec": {"training": {"epochs": 3}}, "status": status}

    assert [str(problem) for problem in check_update(old, {"spec": {"training": training}})] == want


MISFIT = (
    "spec.training.epochs: 1 is too small: the job would fail, because `spec.schedule.warmup` does not fit. 2000 must "
    "be less than the 1667 steps of `spec.training.epochs` (1). Set more epochs."
)
SCHEDULES: dict[str, tuple[float, Any, list[str]]] = {
    "too long": (1, {"warmup": 2000}, [MISFIT]),
    "fits": (2, {"warmup": 2000}, []),
    "a share": (1, {"warmup": "50%"}, []),
    "none": (1, None, []),
    "invalid": (1, {"warmup": 2000, "type": "flat"}, []),
    "too little of it is usable": (1, "x" * 2_000_000, []),
}


@pytest.mark.parametrize(("epochs", "schedule", "want"), SCHEDULES.values(), ids=SCHEDULES.keys())
def test_fewer_epochs_have_enough_steps_for_the_schedule(epochs: float, schedule: Any, want: list[str]) -> None:
    sections = {"schedule": schedule} if schedule else {}
    training = {"globalBatchSize": 16, "sequenceLength": 32}
    old, new = (spec_manifest(training=training | {"epochs": number}, **sections) for number in (3, epochs))
    status = {**STATUS, "progress": {"step": 1200, "of": 5001}}

    assert [str(problem) for problem in check_update({"spec": old, "status": status}, {"spec": new})] == want


PASSED = (
    "spec.activeDeadlineSeconds: 3600 must be greater than 7,201, the seconds that the job has run. It would fail at "
    "once, and lose the steps since its last checkpoint. To stop the job with a save, set `spec.suspend: true`."
)
DEADLINES = {
    "in the future": (None, 7201, []),
    "passed": (None, 3600, [PASSED]),
    "lowered below the time that has passed": (8000, 3600, [PASSED]),
    "unchanged": (3600, 3600, []),
    "removed": (3600, None, []),
}


@pytest.mark.parametrize(("before", "deadline", "want"), DEADLINES.values(), ids=DEADLINES.keys())
def test_an_edit_of_the_deadline_fails_no_job_at_once(
    before: int | None, deadline: int | None, want: list[str]
) -> None:
    status = {**STATUS, "runningSeconds": 7200.6}
    old, new = (job(status=status, activeDeadlineSeconds=seconds) for seconds in (before, deadline))

    assert [str(problem) for problem in check_update(old, new)] == want


def test_finished_job_is_immutable() -> None:
    old = job(status=OVER, slices={"max": 2})

    assert list(check_update(old, job(slices={"max": 2}, ttlSecondsAfterFinished=60))) == []
    assert [problem.path for problem in check_update(old, job(9000, suspend=True))] == [
        "spec.slices",
        "spec.suspend",
        "spec.training",
    ]


def test_finished_job_has_a_next_step_that_its_program_allows() -> None:
    (trainer,) = check_update(job(status=OVER), job(6000))
    commands = [{"command": ["python"], "steps": steps} for steps in (1, 2)]
    (program,) = check_update(job(status=OVER, program=commands[0]), job(program=commands[1]))

    new_job = "must not change, because the job has finished. Create another job with the same `spec.checkpoint.uri`"
    assert trainer.message == f"{new_job} and `spec.checkpoint.takeover: true`. It resumes from the newest checkpoint."
    assert program.message == f"{new_job}. The program resumes from what it has saved there."


@pytest.mark.parametrize("broken", [None, [], "x", {"spec": []}, {"spec": {"training": []}, "status": []}])
def test_no_shape_is_too_odd(broken: Any) -> None:
    assert list(check_update(broken, broken)) == []
    assert list(warn_of_update(broken, broken)) == []
    assert all(problem.path.startswith("spec.") for problem in check_update({"status": OVER, "spec": []}, broken))


def test_a_decay_to_the_last_step_changes_with_it() -> None:
    (warning,) = warn_of_update(job(), job(8000))
    assert warning.path == "spec.training.steps"
    assert warning.message == (
        "changes the learning rate from the next step on. The schedule `cosine` then decays over 8,000 steps instead "
        "of 5,000."
    )
    assert list(warn_of_update(job(), job(8000, schedule={"type": "constant"}))) == []
    assert list(warn_of_update(job(), job())) == []
    assert list(warn_of_update(job(status={}), job(8000))) == [], "it has not begun"


def test_a_warmup_that_is_a_share_changes_with_the_steps() -> None:
    share = {"type": "constant", "warmup": "10%"}
    (constant,) = warn_of_update(job(), job(8000, schedule=share))
    (both,) = warn_of_update(job(), job(8000, schedule={"warmup": "10%"}))

    assert constant.message == (
        "changes the learning rate from the next step on. The warm-up of 10% then has 800 steps instead of 500."
    )
    assert both.message.endswith("steps instead of 5,000. The warm-up of 10% then has 800 steps instead of 500.")
    assert list(warn_of_update(job(), job(8000, schedule={"type": "constant", "warmup": "a lot"}))) == []


def with_epochs(epochs: float | None, status: Any = STATUS, **spec: Any) -> dict[str, Any]:
    return {"spec": {"training": {"epochs": epochs}, **spec}, "status": status}


def test_steps_instead_of_epochs_cannot_end_before_where_the_job_is() -> None:
    assert [str(problem) for problem in check_update(with_epochs(2), job(1199))] == [BEHIND]
    assert list(check_update(with_epochs(2), job(1200))) == []
    assert list(check_update(with_epochs(2), with_epochs(1))) == []


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other epochs": (with_epochs(2), with_epochs(3), "spec.training.epochs"),
    "epochs instead of steps": (job(), with_epochs(3), "spec.training.epochs"),
    "steps instead of epochs": (with_epochs(3), job(), "spec.training.steps"),
    "other epochs with a constant rate after a share": (
        with_epochs(2),
        with_epochs(3, schedule={"type": "constant", "warmup": "10%"}),
        "spec.training.epochs",
    ),
    "other epochs with a constant rate": (with_epochs(2), with_epochs(3, schedule={"type": "constant"}), ""),
    "other epochs before the job runs": (with_epochs(2, status={}), with_epochs(3), ""),
    "the same epochs": (with_epochs(2), with_epochs(2), ""),
}


@pytest.mark.parametrize(("old", "new", "path"), CHANGES.values(), ids=CHANGES)
def test_the_learning_rate_changes_with_the_steps_that_epochs_have(
    old: dict[str, Any], new: dict[str, Any], path: str
) -> None:
    found = list(warn_of_update(old, new))

    assert [problem.path for problem in found] == [path] * bool(path)
    assert all("changes the learning rate from the next step on" in problem.message for problem in found)
