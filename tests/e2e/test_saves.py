"""Times of snapshots and saves from metrics lines: each once, and the first save of a world separately."""

from typing import Any

import pytest

from e2e.benchmarks.saves import find_blocked_seconds, summarise


def make_line(step: int, **reported: float) -> dict[str, Any]:
    return {"step": step, "step_seconds": 0.5, **reported}


WORLD = (
    make_line(1),
    make_line(2, snapshot=1, snapshot_seconds=0.02),
    make_line(3, snapshot=1, snapshot_seconds=0.02),
    make_line(4, snapshot=3, snapshot_seconds=0.02, save_seconds=0.9),
    make_line(5, snapshot=3, snapshot_seconds=0.02, save_seconds=0.9),
    make_line(6, snapshot=5, snapshot_seconds=0.05, save_seconds=0.1),
)


def test_each_wait_counts_once_though_every_line_repeats_it() -> None:
    assert find_blocked_seconds(WORLD, "snapshot_seconds", "snapshot") == [0.02, 0.02, 0.05]
    assert find_blocked_seconds(WORLD, "save_seconds", "save_seconds") == [0.9, 0.1]


def test_first_saves_are_separate_and_snapshots_have_their_share() -> None:
    other = [line | {"save_seconds": line["save_seconds"] * 2} for line in WORLD if "save_seconds" in line]
    found = {one.name: one for one in summarise([WORLD, other], every=2, copy_seconds=0.2)}

    assert found["first save: longest"].value == 1.8
    assert found["save: longest"].value == 0.2
    assert found["save: longest"].against == pytest.approx(0.5)
    assert (found["saves that waited longer"].value, found["saves that waited longer"].against) == (0, 2)
    assert found["snapshot: longest"].value == 0.05
    assert found["snapshots: share of time"].value == pytest.approx(0.16 / 5 / (2 * 0.5))


def test_saves_that_wait_longer_than_they_may_are_counted() -> None:
    slow = [*WORLD, make_line(7, snapshot=5, snapshot_seconds=0.05, save_seconds=0.51)]
    found = {one.name: one for one in summarise([WORLD, slow], every=2, copy_seconds=0.2)}

    assert (found["saves that waited longer"].value, found["saves that waited longer"].against) == (1, 3)
