"""The metrics that a job wrote during training, and the lines that belong to its committed history."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from e2e.product import Job, Product

type Line = dict[str, Any]


def read_metrics(product: Product, job: Job) -> list[Line]:
    """Return the lines of a job's metrics.jsonl, oldest first."""
    uri = job.read()["spec"]["checkpoint"]["uri"]
    text = product.run_in_reader(job.namespace, "cat", f"{uri}/metrics/metrics.jsonl")
    return [json.loads(line) for line in text.splitlines()]


def committed_curve(lines: Iterable[Line], lineage: Iterable[Mapping[str, Any]]) -> dict[int, Line]:
    """Return the training lines of the lineage by step.

    A step that was lost and trained again has lines of two generations. The lineage decides which line counts.

    Raises:
        ValueError: a step has two lines of the generation that counts.
    """
    spans = list(lineage)
    curve: dict[int, Line] = {}
    for line in lines:
        if "loss" not in line or not any(holds(span, line) for span in spans):
            continue
        if line["step"] in curve:
            raise ValueError(f"step {line['step']} was trained twice in the committed history: {curve[line['step']]}")
        curve[line["step"]] = line
    return curve


def holds(span: Mapping[str, Any], line: Line) -> bool:
    """Return whether a line belongs to a span of the lineage."""
    last = span.get("last")
    return (
        line["generation"] == span["generation"]
        and line["step"] >= span["first"]
        and (last is None or line["step"] <= last)
    )
