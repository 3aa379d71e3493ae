"""Parameters of sweeps: a sample of the cases is tested at every change, all of them by the slow tests."""

from collections.abc import Sequence
from typing import Any

import pytest


def sample(cases: Sequence[tuple[object, ...]], every: int) -> list[Any]:
    """Return all cases as parameters with ids. Each `every`-th case is a fast test, the others are slow tests.

    Choose `every` without a common divisor with the length of a product's last factor: the sample then has each value.
    """
    return [
        pytest.param(*case, id="-".join(map(str, case)), marks=() if number % every == 0 else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
