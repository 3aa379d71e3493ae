"""Windows of traced steps, and the names of requested traces."""

import pytest

from trainingjob_api.inspection import trace_name
from trainingjob_api.spec.profiling import Profiling

ONCE = Profiling(start_step=5, num_steps=3)
AGAIN = Profiling(start_step=5, num_steps=3, every_steps=10)


@pytest.mark.parametrize(
    ("profiling", "step", "last"),
    [
        (ONCE, 4, None),
        (ONCE, 5, 7),
        (ONCE, 7, 7),
        (ONCE, 8, None),
        (ONCE, 15, None),
        (AGAIN, 4, None),
        (AGAIN, 6, 7),
        (AGAIN, 14, None),
        (AGAIN, 15, 17),
        (AGAIN, 27, 27),
        (AGAIN, 28, None),
    ],
)
def test_a_step_belongs_to_the_trace_of_its_window(profiling: Profiling, step: int, last: int | None) -> None:
    assert profiling.find_last_step(step) == last


def test_requested_traces_differ_from_those_of_the_spec_by_their_name() -> None:
    assert trace_name("1f09ab3c") == "request-1f09ab3c"
