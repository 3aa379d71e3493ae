"""Rules about traces of optimizer steps."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule

MAX_TRACES = 100
"""Number of traces of a job from which on a mistake is likely: all of them stay on shared storage."""


def check_windows(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A trace must end before the next one begins."""
    profiling = spec.profiling
    if profiling and profiling.every_steps and profiling.num_steps >= profiling.every_steps:
        every = profiling.every_steps
        limit = quote_field("spec.profiling.everySteps", every)
        message = f"{profiling.num_steps} must be less than {limit}. A trace ends before the next one begins."
        nearest = (str(every - 1), f"spec.profiling.everySteps: {profiling.num_steps + 1}")
        yield Problem("spec.profiling.numSteps", profiling.num_steps, message, nearest)


def warn_of_no_trace(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `profiling.startStep` above `training.steps`, the job has no trace."""
    profiling, steps = spec.profiling, spec.training.step_limit
    if profiling and profiling.start_step > steps:
        limit = quote_field("spec.training.steps", steps)
        message = f"{profiling.start_step} exceeds {limit}. The job traces no step."
        nearest = (str(max(steps - profiling.num_steps + 1, 1)),)
        yield Problem("spec.profiling.startStep", profiling.start_step, message, nearest)


def warn_of_many_traces(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Traces take megabytes to gigabytes each, and no trace is deleted."""
    profiling, steps = spec.profiling, spec.training.steps
    if profiling is None or profiling.every_steps is None or steps is None:
        return
    count = len(range(profiling.start_step, steps + 1, profiling.every_steps))
    if count > MAX_TRACES:
        rarer = -(-(steps + 1 - profiling.start_step) // MAX_TRACES)
        message = (
            f"{profiling.every_steps} gives {count:,} traces, which all stay below `spec.checkpoint.uri`. A trace has "
            "megabytes to gigabytes."
        )
        yield Problem("spec.profiling.everySteps", profiling.every_steps, message, (str(rarer),))


RULES = (Rule(("profiling",), check_windows),)
WARNINGS = (
    Rule(("profiling", "training.steps"), warn_of_no_trace),
    Rule(("profiling", "training.steps"), warn_of_many_traces),
)
