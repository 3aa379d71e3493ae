"""The rule about intervals that a job is too short for."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule

INTERVALS_PER_JOB = 10
"""Intervals of a job whose interval is suggested."""


def warn_of_long_intervals(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`everySteps` of saves, metrics, statistics and evaluations should be at most `training.steps`."""
    steps = spec.training.step_limit
    nearest = (str(max(steps // INTERVALS_PER_JOB, 1)),)
    for path, every, consequence in _list_intervals(spec):
        if every > steps:
            message = f"{every} exceeds {quote_field('spec.training.steps', steps)}. {consequence}"
            yield Problem(f"{path}.everySteps", every, message, nearest)


def _list_intervals(spec: TrainingJobSpec) -> Iterator[tuple[str, int, str]]:
    """Yield the sections with an interval: path, steps, and what happens if the interval never ends."""
    save, statistics = spec.checkpoint.save, spec.metrics.statistics
    if save.every is None:
        yield "spec.checkpoint.save", save.every_steps, "A failure before the end restarts the job at step 0."
    yield "spec.metrics", spec.metrics.every_steps, "The job writes metrics only for its last step."
    if statistics:
        yield "spec.metrics.statistics", statistics.every_steps, "The job computes no norms."
    for number, evaluation in enumerate(spec.evaluation):
        path = f"spec.evaluation[{number}]"
        yield path, evaluation.every_steps, "The evaluation runs only after the last step."


WARNINGS = (
    Rule(
        (
            "checkpoint.save.everySteps",
            "checkpoint.save.every",
            "metrics.everySteps",
            "metrics.statistics",
            "evaluation",
            "training.steps",
        ),
        warn_of_long_intervals,
    ),
)
