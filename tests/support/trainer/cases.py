"""Tables of cases of which the fast tests take a few: to compile a program takes seconds."""

import os
from collections.abc import Mapping
from typing import Any

import pytest

ALL_CASES = "ALL_CASES"
"""If this variable is set, the slow tests take all cases."""
SLOW_SHARE = 4


def takes_all_cases() -> bool:
    """Return whether the slow tests take all cases."""
    return bool(os.environ.get(ALL_CASES))


def each(argument: str, cases: Mapping[str, Any], *quick: str) -> pytest.MarkDecorator:
    """Return the decorator that runs a test for the quick cases, and for every fourth of the others as a slow test.

    With `ALL_CASES` in the environment, the slow tests take all others.
    """
    assert set(quick) <= set(cases)
    step = 1 if takes_all_cases() else SLOW_SHARE
    slow = [name for name in cases if name not in quick][::step]
    return pytest.mark.parametrize(
        argument,
        [
            *(pytest.param(cases[name], id=name) for name in quick),
            *(pytest.param(cases[name], id=name, marks=pytest.mark.slow) for name in slow),
        ],
    )
