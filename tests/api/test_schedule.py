"""The lengths of a schedule, and which object may be set."""

import pytest

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.spec.schedule import Cycles, Schedule, Wsd

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
