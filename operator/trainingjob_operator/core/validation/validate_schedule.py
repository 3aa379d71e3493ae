"""Rules about the learning-rate schedule: its lengths must fit into each other."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.schedule_fit import (
    SCHEDULE,
    check_cycles,
    check_decay,
    check_root_of_steps,
    check_warmup,
    cycle_limit,
    list_warmups,
    quote_cycle,
)
from trainingjob_api.shares import format_share, resolve_steps
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.schedule import Schedule, Wsd
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule, find_unused_alternatives


def check_kind(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Of `schedule.wsd` and `schedule.polynomial`, only the one that `schedule.type` names may be set."""
    schedule = spec.schedule
    objects = {"wsd": schedule.wsd, "polynomial": schedule.polynomial}
    yield from find_unused_alternatives(SCHEDULE, schedule.type, objects)


def warn_of_empty_share(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A share in `schedule` that is less than one step has no effect."""
    schedule, steps = spec.schedule, cycle_limit(spec)
    shares = {path: (share, "There is no warm-up.") for path, share in list_warmups(spec).items()}
    if schedule.type == "wsd":
        shares[f"{SCHEDULE}.wsd.decay"] = ((schedule.wsd or Wsd()).decay, "There is no decay.")
    for path, (share, effect) in shares.items():
        if steps and isinstance(share, str) and share != "0%" and resolve_steps(share, steps) == 0:
            smallest = format_share(1 / steps)
            nearest = ("0", *((smallest,) if resolve_steps(smallest, steps) else ()))
            yield Problem(path, share, f"{share} of {quote_cycle(spec)} is less than 1 step. {effect}", nearest)


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
    if length is None or steps is None or length == steps or spec.schedule.type == "constant":
        return
    limit = quote_field("spec.training.steps", steps)
    if length < steps:
        message = f"{length} is less than {limit}. The last {steps - length} steps keep the last learning rate."
    else:
        message = f"{length} exceeds {limit}. Training ends before the learning rate reaches its last value."
    yield Problem(f"{SCHEDULE}.steps", length, message, (str(steps),))


_LENGTHS = ("schedule.warmup", "schedule.cycles", "schedule.steps", "training.steps", "training.epochs")
RULES = (
    Rule(("schedule.type", "schedule.wsd", "schedule.polynomial"), check_kind),
    Rule(("schedule.cycles", "schedule.steps", "training.steps", "training.epochs"), check_cycles),
    Rule(_LENGTHS, check_warmup),
    Rule(("schedule.type", *_LENGTHS), check_root_of_steps),
    Rule(("schedule.type", "schedule.wsd", *_LENGTHS), check_decay),
)
WARNINGS = (
    Rule(("schedule.type", "schedule.wsd", *_LENGTHS), warn_of_empty_share),
    Rule(("schedule.type", "schedule.finalFraction"), warn_of_unused_final_fraction),
    Rule(("schedule.type", "schedule.steps", "training.steps"), warn_of_other_length),
)
