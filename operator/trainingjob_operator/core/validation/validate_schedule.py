"""Rules about the learning-rate schedule: its lengths must fit into each other."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.shares import format_share, resolve_steps
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.schedule import Schedule, Wsd, divide_cycles
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule, find_unused_alternatives

SCHEDULE = "spec.schedule"


def check_kind(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Of `schedule.wsd` and `schedule.polynomial`, only the one that `schedule.type` names may be set."""
    schedule = spec.schedule
    given = {"wsd": schedule.wsd, "polynomial": schedule.polynomial}
    yield from find_unused_alternatives(SCHEDULE, schedule.type, given)


def check_cycles(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each cycle of `schedule.cycles` must have at least one step."""
    cycles, length = spec.schedule.cycles, _length(spec)
    if cycles and cycles.count > length:
        message = f"{cycles.count} must be at most {_quote_length(spec)}."
        yield Problem(f"{SCHEDULE}.cycles.count", cycles.count, message, (str(length),) if length > 1 else ())


def check_warmup(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The warm-ups of `schedule` must be less than `training.steps`, `schedule.steps` and a cycle."""
    steps = _cycle(spec)
    for path, given in _warmups(spec).items():
        warmup = resolve_steps(given, steps)
        if warmup >= steps > 0:  # a share never is
            message = f"{warmup} must be less than {_quote_cycle(spec)}."
            yield Problem(path, warmup, message, (str(steps - 1),))


def check_root_of_steps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`schedule.type: inverseSqrt` needs warm-ups of at least one step: they are its time scale."""
    if spec.schedule.type != "inverseSqrt":
        return
    steps = _cycle(spec)
    for path, given in _warmups(spec).items():
        if resolve_steps(given, steps) == 0:
            field = quote_field(f"{SCHEDULE}.type", spec.schedule.type)
            message = f"{given} must be at least 1 step with {field}, which falls with the root of warm-up by step."
            yield Problem(path, given, message, (format_share(1 / steps),) if steps > 1 else ())


def check_decay(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Warm-up and `schedule.wsd.decay` must fit into `training.steps`, `schedule.steps` and a cycle."""
    if spec.schedule.type != "wsd":
        return
    steps, given = _cycle(spec), (spec.schedule.wsd or Wsd()).decay
    decay = resolve_steps(given, steps)
    longest = max(resolve_steps(warmup, steps) for warmup in _warmups(spec).values())
    limit = steps - longest
    if 0 < limit < decay:
        message = f"{given} must be at most {limit} steps: {_quote_cycle(spec)} less a warm-up of {longest}."
        yield Problem(f"{SCHEDULE}.wsd.decay", given, message, (str(limit),))


def warn_of_empty_share(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A share in `schedule` that is less than one step has no effect."""
    schedule, steps = spec.schedule, _cycle(spec)
    shares = {path: (share, "There is no warm-up.") for path, share in _warmups(spec).items()}
    if schedule.type == "wsd":
        shares[f"{SCHEDULE}.wsd.decay"] = ((schedule.wsd or Wsd()).decay, "There is no decay.")
    for path, (share, effect) in shares.items():
        if steps and isinstance(share, str) and share != "0%" and resolve_steps(share, steps) == 0:
            smallest = format_share(1 / steps)
            nearest = ("0", *((smallest,) if resolve_steps(smallest, steps) else ()))
            yield Problem(path, share, f"{share} of {_quote_cycle(spec)} is less than 1 step. {effect}", nearest)


def warn_of_unused_final_fraction(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`schedule.finalFraction` has no effect on a constant learning rate."""
    schedule = spec.schedule
    if schedule.type == "constant" and schedule.final_fraction != Schedule().final_fraction:
        message = has_no_effect("the schedule `constant` keeps the peak learning rate to the end")
        nearest = (f"{SCHEDULE}.type: linear", f"{SCHEDULE}.type: cosine")
        yield Problem(f"{SCHEDULE}.finalFraction", schedule.final_fraction, message, nearest)


def warn_of_other_length(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A schedule that is shorter or longer than the training ends at another learning rate than its last."""
    length, steps = spec.schedule.steps, spec.training.steps
    if length is None or length == steps or spec.schedule.type == "constant":
        return
    limit = quote_field("spec.training.steps", steps)
    if length < steps:
        message = f"{length} is less than {limit}. The last {steps - length} steps keep the last learning rate."
    else:
        message = f"{length} exceeds {limit}. Training ends before the learning rate reaches its last value."
    yield Problem(f"{SCHEDULE}.steps", length, message, (str(steps),))


# These functions read single fields: a rule runs unless one of those that it reads is invalid.


def _length(spec: TrainingJobSpec) -> int:
    return spec.schedule.steps or spec.training.steps


def _cycle(spec: TrainingJobSpec) -> int:
    steps: int = divide_cycles(_length(spec), spec.schedule.cycles)
    return steps


def _warmups(spec: TrainingJobSpec) -> dict[str, int | str]:
    """Return the lengths of warm-ups as they are given, by path."""
    schedule = spec.schedule
    later = {f"{SCHEDULE}.cycles.warmup": schedule.cycles.warmup} if schedule.cycles else {}
    return {f"{SCHEDULE}.warmup": schedule.warmup, **later}


def _quote_length(spec: TrainingJobSpec) -> str:
    if spec.schedule.steps:
        return quote_field(f"{SCHEDULE}.steps", spec.schedule.steps)
    return quote_field("spec.training.steps", spec.training.steps)


def _quote_cycle(spec: TrainingJobSpec) -> str:
    """Return the length that a warm-up must not exceed, with the fields that it follows from."""
    if spec.schedule.cycles is None:
        return _quote_length(spec)
    return f"the {_cycle(spec)} steps of each of {spec.schedule.cycles.count} cycles in {_quote_length(spec)}"


_LENGTHS = ("schedule.warmup", "schedule.cycles", "schedule.steps", "training.steps")
RULES = (
    Rule(("schedule.type", "schedule.wsd", "schedule.polynomial"), check_kind),
    Rule(("schedule.cycles", "schedule.steps", "training.steps"), check_cycles),
    Rule(_LENGTHS, check_warmup),
    Rule(("schedule.type", *_LENGTHS), check_root_of_steps),
    Rule(("schedule.type", "schedule.wsd", *_LENGTHS), check_decay),
)
WARNINGS = (
    Rule(("schedule.type", "schedule.wsd", *_LENGTHS), warn_of_empty_share),
    Rule(("schedule.type", "schedule.finalFraction"), warn_of_unused_final_fraction),
    Rule(("schedule.type", "schedule.steps", "training.steps"), warn_of_other_length),
)
