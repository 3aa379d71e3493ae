"""The lengths of a schedule, and which object may be set."""

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.schedule_fit import CHECKS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.schedule import Cycles, Schedule, Wsd
from trainingjob_api.spec.training import Training

LENGTHS: dict[str, tuple[Schedule, tuple[int, int, int, int]]] = {
    "the training": (Schedule(warmup=7), (100, 7, 0, 10)),
    "shares": (Schedule(warmup="2%", wsd=Wsd(decay="30%")), (100, 2, 0, 30)),
    "a separate length": (Schedule(warmup="2%", steps=50), (50, 1, 0, 5)),
    "cycles": (Schedule(warmup="10%", cycles=Cycles(count=3, warmup="20%"), wsd=Wsd(decay=5)), (33, 3, 6, 5)),
    "more cycles than steps": (Schedule(cycles=Cycles(count=101)), (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("schedule", "want"), LENGTHS.values(), ids=LENGTHS.keys())
def test_lengths_of_a_training_of_a_hundred_steps(schedule: Schedule, want: tuple[int, int, int, int]) -> None:
    lengths = (schedule.cycle_steps, schedule.warmup_steps, schedule.later_warmup_steps, schedule.decay_steps)

    assert tuple(length(100) for length in lengths) == want


def test_api_server_rejects_the_object_of_another_type() -> None:
    rules = {rule["fieldPath"]: rule["rule"] for rule in SPEC_RULES["schedule",] if "fieldPath" in rule}

    assert rules == {
        ".wsd": "!has(self.wsd) || self.type == 'wsd'",
        ".polynomial": "!has(self.polynomial) || self.type == 'polynomial'",
    }


FITS: dict[str, tuple[Schedule, list[str]]] = {
    "all lengths fit": (Schedule(type="wsd", warmup=10, wsd=Wsd(decay=30)), []),
    "a warm-up of all steps": (
        Schedule(warmup=40),
        ["spec.schedule.warmup: 40 must be less than the 40 steps of `spec.training.epochs` (1.5)."],
    ),
    "a decay beyond a cycle": (
        Schedule(type="wsd", warmup=5, wsd=Wsd(decay=30), cycles=Cycles(count=2)),
        [
            (
                "spec.schedule.wsd.decay: 30 must be at most 15 steps: the 20 steps of each of 2 cycles in the 40 "
                "steps of `spec.training.epochs` (1.5) less a warm-up of 5."
            )
        ],
    ),
}


@pytest.mark.parametrize(("schedule", "want"), FITS.values(), ids=FITS.keys())
def test_lengths_must_fit_into_the_steps_that_epochs_have(schedule: Schedule, want: list[str]) -> None:
    training = Training(epochs=1.5, global_batch_size=2, sequence_length=8)
    spec = TrainingJobSpec.model_validate(spec_manifest())
    unresolved = spec.model_copy(update={"training": training, "schedule": schedule})
    resolved = spec.model_copy(update={"training": training.model_copy(update={"steps": 40}), "schedule": schedule})

    assert [problem for check in CHECKS for problem in check(unresolved)] == []
    found = [f"{problem.path}: {problem.message}" for check in CHECKS for problem in check(resolved)]
    assert found == want
