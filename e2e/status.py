"""What journeys, demo and benchmarks read off a TrainingJob's status, whatever of it is there yet."""

from typing import Any

type Status = dict[str, Any]


def step_of(status: Status) -> int:
    """Return the newest step in a status; 0 where there is none."""
    step: int = (status.get("progress") or {}).get("step", 0)
    return step


def steps_trained(status: Status) -> int:
    """Return how many steps the newest world has made so far, those included that were made before and lost."""
    newest = (status.get("attempts") or [{}])[-1]
    steps: int = (newest.get("lastStep") or 0) - (newest.get("firstStep") or 0)
    return steps


def generation_of(status: Status) -> int:
    """Return the number of the committed world; 0 where there is none."""
    number: int = (status.get("world") or {}).get("generation", 0)
    return number


def is_full(status: Status) -> bool:
    """Return whether the job trains on all slices that it wants."""
    training, _, wanted = status.get("display", {}).get("slices", "").partition("/")
    return bool(training) and training == wanted


def condition(status: Status, kind: str) -> dict[str, Any]:
    """Return a condition of a status; empty where it is not there yet."""
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
