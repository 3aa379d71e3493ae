"""The profiling section: which steps are traced."""

from typing import Any

import pytest

from trainingjob_api.spec.profiling import Profiling

TRACED: dict[str, tuple[dict[str, Any], dict[int, int]]] = {
    "once": ({"startStep": 5, "numSteps": 2}, {5: 6, 6: 6}),
    "at an interval": ({"startStep": 3, "numSteps": 2, "everySteps": 5}, {3: 4, 4: 4, 8: 9, 9: 9}),
    "without a pause": ({"startStep": 9, "numSteps": 2, "everySteps": 2}, {9: 10, 10: 10}),
}


@pytest.mark.parametrize(("fields", "want"), TRACED.values(), ids=TRACED)
def test_a_step_belongs_to_a_trace(fields: dict[str, Any], want: dict[int, int]) -> None:
    profiling = Profiling.model_validate(fields)

    last = {step: profiling.find_last_step(step) for step in range(1, 11)}
    assert {step: end for step, end in last.items() if end} == want
