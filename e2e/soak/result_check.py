"""Checks of a finished job: its result must equal that of an undisturbed job."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from e2e.history import Line, committed_curve
from trainingjob_api.status.training_job_status import TrainingJobStatus

type Outage = tuple[float, float]
"""Begin and end of a time without working writes, by the clock of the metrics lines."""

MAX_LOSS_DIFFERENCE = 1e-3
MAX_LEDGER_ERROR = 0.005
MAX_UNREPORTED_STEPS = 2
"""Number of steps that other hosts may have trained and snapshotted before process 0 reports the first of them."""
CLOCK_ACCURACY_SECONDS = 0.25
"""Accuracy with which the test knows the begin and end of the operator's ledger, in seconds."""


def check_result(
    status: TrainingJobStatus,
    lines: Sequence[Line],
    reference: Mapping[int, float],
    num_steps: int,
    wall_seconds: tuple[float, float],
    outages: Sequence[Outage] = (),
) -> Iterator[str]:
    """Yield the problems of a finished job.

    `lines` are the training lines of its trainers in the order written. `reference` has the losses of an undisturbed
    job. Steps trained during `outages` may lack their lines. `wall_seconds` are the minimum and maximum duration of the
    job. They differ if its operator's clock was changed.
    """
    if status.phase != "Succeeded":
        yield f"the job is {status.phase}"
        return
    lineage = [span.model_dump(exclude_none=True) for span in status.lineage]
    try:
        curve = committed_curve(lines, lineage)
    except ValueError as error:
        yield str(error)
        return
    unreported = {
        step
        for span in status.lineage
        if span.tier == "ram"
        for step in range(span.first - MAX_UNREPORTED_STEPS, span.first)
    }
    missing = _find_missing(curve, num_steps, outages, unreported)
    if missing or not curve or max(curve) > num_steps:
        trained = sorted({line["generation"] for line in lines if line["step"] in missing})
        spans = ", ".join(f"{span.generation} from {span.first} ({span.tier})" for span in status.lineage)
        yield (
            f"{len(missing)} steps are not in the committed history, the first of them {missing[:5]}; generations "
            f"{trained} have lines of them, and the lineage is {spans}"
        )
    else:
        yield from _compare(curve, reference)
    yield from find_split_brain(lines)
    spent = sum(status.goodput.seconds.values())
    least, most = wall_seconds
    if max(least - spent, spent - most) > max(MAX_LEDGER_ERROR * most, CLOCK_ACCURACY_SECONDS):
        yield f"the ledger has {spent:.2f} seconds of {least:.2f} to {most:.2f}"


def _find_missing(
    curve: Mapping[int, Line], num_steps: int, outages: Sequence[Outage], untold: Collection[int]
) -> list[int]:
    """Return the steps that lack a line without an excuse.

    `untold` are the last steps of worlds whose process 0 may have died before it reported them.
    """
    absent = [step for step in range(1, num_steps + 1) if step not in curve and step not in untold]
    return [step for step in absent if not _is_excused_by_outage(curve, step, outages)]


def _compare(curve: Mapping[int, Line], reference: Mapping[int, float]) -> Iterator[str]:
    """Yield differences between the samples and losses of a curve and those of the reference."""
    rows = curve[min(curve)]["last_slot"] - curve[min(curve)]["first_slot"] + 1
    for step, line in sorted(curve.items()):
        slot = (step - 1) * rows
        if (line["first_slot"], line["last_slot"]) != (slot, slot + rows - 1):
            yield f"step {step} has slots {line['first_slot']} to {line['last_slot']}, and its first one is {slot}"
    differences = {step: abs(curve[step]["loss"] - reference[step]) for step in curve}
    worst = max(differences, key=lambda step: differences[step])
    if differences[worst] > MAX_LOSS_DIFFERENCE:
        yield f"the loss of step {worst} differs by {differences[worst]:.2g} from that of an undisturbed job"


def _is_excused_by_outage(curve: Mapping[int, Line], step: int, outages: Sequence[Outage]) -> bool:
    """Return whether a step without a line was trained during an outage."""
    before = max((line["time"] for number, line in curve.items() if number < step), default=-inf)
    after = min((line["time"] for number, line in curve.items() if number > step), default=inf)
    return any(start <= after and ended >= before for start, ended in outages)


def find_split_brain(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the generations that kept training after a later one had begun.

    One line may be late: its process may have been stopped between a step and the report of it.
    """
    newest, late = 0, dict[int, int]()
    for line in lines:
        if line["generation"] < newest:
            late[line["generation"]] = late.get(line["generation"], 0) + 1
        newest = max(newest, line["generation"])
    for generation, number in late.items():
        if number > 1:
            yield f"generation {generation} made {number} steps after a later one had begun"
