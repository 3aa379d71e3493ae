"""Reading an incomplete status: missing fields are empty, and never an error."""

import pytest

from e2e.status import condition, generation_of, is_full, step_of, steps_trained


def test_empty_status_has_no_values() -> None:
    assert (step_of({}), steps_trained({}), generation_of({}), is_full({}), condition({}, "Ready")) == (
        0,
        0,
        0,
        False,
        {},
    )


@pytest.mark.parametrize(
    ("newest", "steps"),
    [
        ({}, 0),  # it has not restored
        ({"firstStep": 20, "lastStep": 20}, 0),
        ({"firstStep": 20, "lastStep": 22}, 2),  # the world before was at 30: these are made for the second time
        ({"firstStep": 0, "lastStep": 3}, 3),
    ],
)
def test_the_newest_world_alone_counts(newest: dict[str, int], steps: int) -> None:
    assert steps_trained({"progress": {"step": 30}, "attempts": [{"firstStep": 0, "lastStep": 30}, newest]}) == steps


@pytest.mark.parametrize(("slices", "full"), [("2/2", True), ("1/2", False), ("1/1", True), ("", False)])
def test_a_job_is_full_with_all_slices_that_it_wants(slices: str, full: bool) -> None:
    assert is_full({"display": {"slices": slices}}) is full
