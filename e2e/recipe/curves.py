"""The curves of a job: the losses of its training and evaluations by step, and the slices that trained. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.history import Line, committed_curve, holds

type Curve = dict[int, float]
"""A value by step."""


@dataclass(frozen=True)
class Training:
    """What a job's committed history contains."""

    loss: Curve
    evaluations: dict[str, Curve]
    slices: tuple[tuple[int, int], ...]
    """First step and number of slices of each span between two changes."""


def read_training(lines: Sequence[Line], status: Mapping[str, Any], evaluations: Iterable[str]) -> Training:
    """Return the curves of the lines that belong to the committed history of a status.

    Raises:
        ValueError: a step has two lines of the generation that counts.
    """
    lineage = status["lineage"]
    sizes = {attempt["generation"]: attempt["slices"] for attempt in status["attempts"]}
    spans: list[tuple[int, int]] = []
    for span in lineage:
        slices = sizes[span["generation"]]
        if not spans or spans[-1][1] != slices:
            spans.append((span["first"], slices))
    return Training(
        loss={step: line["loss"] for step, line in sorted(committed_curve(lines, lineage).items())},
        evaluations={name: read_evaluation(lines, lineage, name) for name in evaluations},
        slices=tuple(spans),
    )


def read_evaluation(lines: Iterable[Line], lineage: Iterable[Mapping[str, Any]], name: str) -> Curve:
    """Return the losses of an evaluation in the committed history."""
    spans = list(lineage)
    return {
        line["step"]: line["held_out_loss"]
        for line in lines
        if line.get("evaluation") == name and any(holds(span, line) for span in spans)
    }


def largest_difference(some: Curve, others: Curve) -> tuple[float, int]:
    """Return the largest difference of two curves and its step.

    Raises:
        ValueError: the curves have different steps.
    """
    if some.keys() != others.keys():
        raise ValueError(f"one curve has steps that the other lacks: {sorted(some.keys() ^ others.keys())[:5]}")
    return max((abs(some[step] - others[step]), step) for step in some)
