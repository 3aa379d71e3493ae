"""Accessors for a TrainingJob's status that tolerate missing fields, for journeys, demo and benchmarks."""

from typing import Any

type Status = dict[str, Any]


def step_of(status: Status) -> int:
    """Return the newest step in a status; 0 if there is none."""
    step: int = (status.get("progress") or {}).get("step", 0)
    return step


def steps_trained(status: Status) -> int:
    """Return the number of steps that the newest world has trained, including repeats of lost steps."""
    newest = (status.get("attempts") or [{}])[-1]
    steps: int = (newest.get("lastStep") or 0) - (newest.get("firstStep") or 0)
    return steps


def generation_of(status: Status) -> int:
    """Return the generation of the committed world; 0 if there is none."""
    number: int = (status.get("world") or {}).get("generation", 0)
    return number


def is_full(status: Status) -> bool:
    """Return whether the job trains on all requested slices."""
    training, _, requested = status.get("display", {}).get("slices", "").partition("/")
    return bool(training) and training == requested


def condition(status: Status, kind: str) -> dict[str, Any]:
    """Return a condition of a status; empty if it is not set yet."""
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
