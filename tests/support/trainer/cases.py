"""Tables of cases of which the fast tests take a few: to compile a program takes seconds."""

from collections.abc import Mapping
from typing import Any

import pytest


def each(argument: str, cases: Mapping[str, Any], *quick: str) -> pytest.MarkDecorator:
    """Return the decorator that runs a test for each case; all but the quick ones are among the slow tests."""
    assert set(quick) <= set(cases)
    return pytest.mark.parametrize(
        argument,
        [pytest.param(case, id=name, marks=() if name in quick else pytest.mark.slow) for name, case in cases.items()],
    )
