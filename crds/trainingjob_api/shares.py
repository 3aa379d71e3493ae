"""Numbers of steps that are whole numbers or shares of a schedule, as Kubernetes writes an IntOrString.

A share survives an edit of `training.steps`. `resolve_steps` is the only place that turns it into a number: planner,
validation and the compiled program all call it.
"""

import math
import re
from typing import Annotated, Any

from trainingjob_api.int_or_text import IntOrText

MAX_STEPS = 100_000_000
MAX_PERCENT = 99
"""The largest share, so that the resolved number is less than `training.steps` whatever that is."""
_PERCENT = re.compile(r"\s*([0-9]{1,6})(\.[0-9]{1,6})?\s*(%|percent)\s*")


def normalize_share(text: str) -> str:
    """Return a share as a whole number of percent: `0.5 %` and `150%` become `1%` and `99%`."""
    match = _PERCENT.fullmatch(text)
    return format_share(float(match[1] + (match[2] or "")) / 100) if match else text


def format_share(ratio: float) -> str:
    """Return the nearest legal share of a ratio, rounded up to whole percent: `0.05` becomes `5%`."""
    return f"{min(math.ceil(round(ratio * 100, 6)), MAX_PERCENT)}%"


SHARE = r"^[1-9]?[0-9]%$"
StepCount = Annotated[
    int | str,
    IntOrText(
        SHARE,
        f"a whole number of steps, or a share of the schedule from 0% to {MAX_PERCENT}%",
        normalize_share,
        minimum=0,
        maximum=MAX_STEPS,
    ),
]
"""A number of steps, or a share of the schedule's steps such as `1%`."""


def is_share(value: object) -> bool:
    """Return whether a value of a manifest is a legal share."""
    return isinstance(value, str) and re.fullmatch(SHARE, value) is not None


def resolve_steps(count: int | str, num_steps: Any) -> Any:
    """Return a number of steps. A share is rounded down, so that it is less than `num_steps`.

    `num_steps` is an int, or a traced int32 of a compiled program; the result has its type.
    """
    if isinstance(count, int):
        return count
    percent = int(count.removesuffix("%"))
    # The remainder by itself, because `num_steps * percent` may exceed an int32.
    return num_steps // 100 * percent + num_steps % 100 * percent // 100
