"""Checks of the lengths of a learning-rate schedule, which must fit into the training and into each other.

The operator checks them when it validates a job. If `training.epochs` decides the number of steps, only the trainer
knows it, and checks them again.
"""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.shares import format_share, resolve_steps
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.schedule import Wsd, divide_cycles

SCHEDULE = "spec.schedule"


def check_cycles(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each cycle of `schedule.cycles` must have at least one step."""
    cycles, length = spec.schedule.cycles, _length_limit(spec)
    if cycles and cycles.count > length:
        message = f"{cycles.count} must be at most {_quote_length(spec)}."
        yield Problem(f"{SCHEDULE}.cycles.count", cycles.count, message, (str(length),) if length > 1 else ())


def check_warmup(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The warm-ups of `schedule` must be less than `training.steps`, `schedule.steps` and a cycle."""
    steps = cycle_limit(spec)
    for path, given in list_warmups(spec).items():
        warmup = resolve_steps(given, steps)
        if warmup >= steps > 0:  # a share never is
            message = f"{warmup} must be less than {quote_cycle(spec)}."
            yield Problem(path, warmup, message, (str(steps - 1),))


def check_root_of_steps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`schedule.type: inverseSqrt` needs warm-ups of at least one step: they are its time scale."""
    if spec.schedule.type != "inverseSqrt":
        return
    steps = cycle_limit(spec)
    for path, given in list_warmups(spec).items():
        if resolve_steps(given, steps) == 0:
            field = f"`{SCHEDULE}.type` ({spec.schedule.type})"
            message = f"{given} must be at least 1 step with {field}, which falls with the root of warm-up by step."
            yield Problem(path, given, message, (format_share(1 / steps),) if steps > 1 else ())


def check_decay(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Warm-up and `schedule.wsd.decay` must fit into `training.steps`, `schedule.steps` and a cycle."""
    if spec.schedule.type != "wsd":
        return
    steps, given = cycle_limit(spec), (spec.schedule.wsd or Wsd()).decay
    decay = resolve_steps(given, steps)
    longest = max(resolve_steps(warmup, steps) for warmup in list_warmups(spec).values())
    limit = steps - longest
    if 0 < limit < decay:
        message = f"{given} must be at most {limit} steps: {quote_cycle(spec)} less a warm-up of "
        yield Problem(f"{SCHEDULE}.wsd.decay", given, f"{message}{longest}.", (str(limit),))


CHECKS = (check_cycles, check_warmup, check_root_of_steps, check_decay)


def check_epochs(spec: TrainingJobSpec, steps: int) -> Iterator[Problem]:
    """Check a spec whose `training.epochs` have a known number of steps."""
    counted = spec.model_copy(update={"training": spec.training.model_copy(update={"steps": steps})})
    for check in CHECKS:
        yield from check(counted)


# These functions read single fields: a rule runs unless one of those that it reads is invalid.


def _length_limit(spec: TrainingJobSpec) -> int:
    return spec.schedule.steps or spec.training.step_limit


def cycle_limit(spec: TrainingJobSpec) -> int:
    """Return the length of a cycle of the schedule; the largest possible one while the number of steps is unknown."""
    steps: int = divide_cycles(_length_limit(spec), spec.schedule.cycles)
    return steps


def list_warmups(spec: TrainingJobSpec) -> dict[str, int | str]:
    """Return the lengths of warm-ups as they are given, by path."""
    schedule = spec.schedule
    later = {f"{SCHEDULE}.cycles.warmup": schedule.cycles.warmup} if schedule.cycles else {}
    return {f"{SCHEDULE}.warmup": schedule.warmup, **later}


def quote_cycle(spec: TrainingJobSpec) -> str:
    """Return the length that a warm-up must not exceed, with the fields that it follows from."""
    cycles, length = spec.schedule.cycles, _quote_length(spec)
    return f"the {cycle_limit(spec)} steps of each of {cycles.count} cycles in {length}" if cycles else length


def _quote_length(spec: TrainingJobSpec) -> str:
    schedule, training = spec.schedule, spec.training
    if schedule.steps:
        return f"`{SCHEDULE}.steps` ({schedule.steps})"
    if training.epochs is not None:
        return f"the {training.step_limit} steps of `spec.training.epochs` ({training.epochs:g})"
    return f"`spec.training.steps` ({training.step_limit})"
