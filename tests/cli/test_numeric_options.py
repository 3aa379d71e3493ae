"""Options that are numbers: each has bounds, so that no command hangs at `inf` or a huge number."""

import math
from typing import Any, get_args, get_type_hints

import pytest

from tests.support.command_line import CliRunner
from trainingjob_api.spec.training import MAX_STEP
from trainingjob_operator.cli.entry_point import app

WITHOUT_BOUNDS = {("sample", "temperature")}
"""Options that the command checks itself: `test_sample.py`."""


def list_options(kind: type) -> dict[tuple[str, str], Any]:
    """Return the options of this type, by function and parameter."""
    functions = [command.callback for command in app.registered_commands if command.callback]
    return {
        (function.__name__, name): hint.__metadata__[0]
        for function in functions
        for name, hint in get_type_hints(function, include_extras=True).items()
        if hasattr(hint, "__metadata__") and kind in (hint.__origin__, *get_args(hint.__origin__))
    }


def test_every_option_with_a_fraction_has_finite_bounds() -> None:
    found = list_options(float)

    assert found.keys() > WITHOUT_BOUNDS
    for place in found.keys() - WITHOUT_BOUNDS:
        bounds = found[place].min, found[place].max
        assert all(bound is not None and math.isfinite(bound) for bound in bounds), (place, bounds)


def test_every_step_has_the_limit_of_the_api() -> None:
    limits = {function: option.max for (function, name), option in list_options(int).items() if name == "step"}

    assert limits == dict.fromkeys(("sample", "evaluate", "export_weights"), MAX_STEP)


REJECTED = {
    "an infinite save": (("simulate", "/", "--save-seconds", "inf"), "--save-seconds", "86400"),
    "a save of no number": (("simulate", "/", "--save-seconds", "nan"), "--save-seconds", "0"),
    "a step of centuries": (("simulate", "/", "--step-seconds", "1e308"), "--step-seconds", "86400"),
    "more spares than slices of a job": (("simulate", "/", "--spares", "257"), "--spares", "256"),
    "an infinite wait": (("wait", "demo", "--timeout", "inf"), "--timeout", "31536000"),
    "a wait before now": (("wait", "demo", "--timeout", "-1"), "--timeout", "0"),
}


@pytest.mark.parametrize(("args", "option", "limit"), REJECTED.values(), ids=REJECTED.keys())
def test_number_out_of_bounds_is_rejected_with_its_option_and_the_bound(
    args: tuple[str, ...], option: str, limit: str
) -> None:
    result = CliRunner().invoke(app, args)

    assert result.exit_code == 2
    assert f"Invalid value for '{option}': it must be " in result.stderr
    assert limit in result.stderr
