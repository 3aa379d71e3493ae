"""Mesh degrees: resolves the degrees of a spec, one of which may be -1, to degrees that multiply to the devices.

ICI degrees fill one slice, DCN degrees fill the slices. A mesh axis has the product of both.
"""

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import NamedTuple

from trainingjob_api.base import Axis
from trainingjob_api.problem import Problem
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.problem_messages import join_words

INFERRED = -1
"""Degree of an axis that takes all remaining devices."""
UNCOMMON_AXES = ("stage", "expert", "context")
"""Axes that users shard only for a specific reason."""


class WrittenDegrees(NamedTuple):
    """Degrees as written in the spec."""

    explicit_product: int
    """The product of the explicit degrees."""
    inferred_axes: tuple[Axis, ...]
    """The axes with degree -1."""


@lru_cache(maxsize=1024)  # all sizes of a job share the written degrees
def summarize_degrees(degrees: AxisDegrees) -> WrittenDegrees:
    """Return the product of the explicit degrees, and the axes with degree -1."""
    items = degrees.items()
    known = math.prod(degree for _, degree in items if degree != INFERRED)
    return WrittenDegrees(known, tuple(axis for axis, degree in items if degree == INFERRED))


@lru_cache(maxsize=1024)  # the sizes of a job share their ICI degrees
def resolve_degrees(
    degrees: AxisDegrees, total: int
) -> AxisDegrees | None:  # None: the degrees cannot multiply to the total
    """Return the degrees with -1 replaced, so that they multiply to the total."""
    known, rest = summarize_degrees(degrees)
    if len(rest) > 1 or known < 1 or total % known or (not rest and known != total):
        return None
    return degrees.model_copy(update=dict.fromkeys(rest, total // known))


@lru_cache(maxsize=1024)
def check_degree_form(path: str, degrees: AxisDegrees) -> tuple[Problem, ...]:
    """Check the rules that hold for any total: no 0, at most one -1."""
    rest = summarize_degrees(degrees).inferred_axes
    message = "0 must be at least 1, or -1 to infer the degree. An axis that is not sharded has degree 1."
    problems = [Problem(f"{path}.{axis}", 0, message, ("1", "-1")) for axis, degree in degrees.items() if degree == 0]
    if len(rest) > 1:
        names = join_words(f"`{axis}`" for axis in rest)
        message = f"at most one degree may be -1, but {names} are. Only one degree can be inferred."
        # One of the axes keeps -1; the others get degree 1.
        nearest = tuple(" and ".join(f"{axis}: 1" for axis in rest if axis != inferred) for inferred in rest)
        problems.append(Problem(path, dict.fromkeys(rest, INFERRED), message, nearest))
    return tuple(problems)


@lru_cache(maxsize=1024)
def check_degree_product(path: str, degrees: AxisDegrees, total: int, total_text: str) -> tuple[Problem, ...]:
    """Check that well-formed degrees multiply to a total. `total_text` names the total: `the 4 devices of a slice`."""
    if check_degree_form(path, degrees) or resolve_degrees(degrees, total):
        return ()
    factors = " x ".join([f"{axis}={degree}" for axis, degree in degrees.sharded() if degree != INFERRED])
    known, rest = summarize_degrees(degrees)
    if rest:
        message = (
            f"the degrees other than {rest[0]}=-1 multiply to {known} ({factors}), which must divide {total_text}."
        )
    else:
        message = f"the degrees multiply to {known} ({factors or 'no axis is sharded'}), but must fill {total_text}."
    return (Problem(path, dict(degrees.items()), message, _nearest_changes(degrees, total)),)


def combine_degrees(ici: AxisDegrees, dcn: AxisDegrees) -> dict[Axis, int]:
    """Return the degrees of the whole mesh."""
    return {axis: inner * outer for (axis, inner), (_, outer) in zip(ici.items(), dcn.items(), strict=True)}


def describe_mesh(layout: Layout) -> str:
    """Return a layout's mesh without axes of degree 1: `dcn data=2 · ici fsdp=16 tensor=4`."""
    parts = []
    for network, degrees in (("dcn", layout.dcn), ("ici", layout.ici)):
        axes = describe_degrees(degrees)
        parts.append(f"{network} {axes}" if axes else "")
    return " · ".join(part for part in parts if part) or "one device"


def describe_degrees(degrees: AxisDegrees) -> str:
    """Return degrees as text, without those of degree 1: `fsdp=16 tensor=4`."""
    return " ".join(f"{axis}={degree}" for axis, degree in degrees.sharded())


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def nearest_divisors(number: int, target: int) -> tuple[int, ...]:
    """Return the divisors of a number next below and next above a target, ascending."""
    all_divisors = divisors(number)
    return (
        *all_divisors[: bisect_left(all_divisors, target)][-1:],
        *all_divisors[bisect_right(all_divisors, target) :][:1],
    )


def nearest_multiples(factor: int, target: int) -> tuple[int, ...]:
    """Return the multiples of a factor next below and next above a target, ascending."""
    below = target // factor * factor
    return (below, below + factor) if below else (factor,)


def _nearest_changes(degrees: AxisDegrees, total: int) -> tuple[str, ...]:
    """Return changes of one axis that make the degrees multiply to the total, the smallest change first.

    Changes that shard the model further come last, because the model dims may not be divisible.
    """
    changes: list[tuple[int, int, str]] = []
    known, rest = summarize_degrees(degrees)
    for axis, degree in degrees.items():
        if degree == INFERRED:
            continue
        # An axis with degree -1 absorbs the rest, so any divisor of the rest works. Without one the degree must be
        # exact.
        remaining, remainder = divmod(total, known // degree)
        if remainder:
            continue
        fitting = nearest_divisors(remaining, degree) if rest else (remaining,)
        changes += [
            (_implausibility(axis, degree, value), abs(value - degree), f"{axis}: {value}") for value in fitting
        ]
    return tuple(text for *_, text in sorted(changes)[:3])


def _implausibility(axis: Axis, degree: int, value: int) -> int:
    """Rank how unlikely the user is to have meant this degree (0 = most likely)."""
    if axis == "data" or value < degree:
        return 0
    return 2 if degree == 1 and axis in UNCOMMON_AXES else 1
