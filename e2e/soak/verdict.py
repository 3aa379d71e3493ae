"""What must hold of a job's result when it is over: as if nothing had ever happened to it."""

from collections.abc import Iterator, Mapping, Sequence

from e2e.history import Line, committed_curve
from trainingjob_api.status import TrainingJobStatus

CURVES_APART = 1e-3
LEDGER_APART = 0.005
CLOCK_SECONDS = 0.25
"""How exactly this machine's side can tell when the operator's ledger began and ended."""


def judge(
    status: TrainingJobStatus,
    lines: Sequence[Line],
    reference: Mapping[int, float],
    num_steps: int,
    wall_seconds: float,
) -> Iterator[str]:
    """Yield what is wrong with a job that is over.

    `lines` are what its trainers wrote of their steps, in that order; `reference` has the losses of a job to which
    nothing happened.
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
    yield from _compare(curve, reference, num_steps)
    yield from find_second_worlds(lines)
    spent = sum(status.goodput.seconds.values())
    if abs(spent - wall_seconds) > max(LEDGER_APART * wall_seconds, CLOCK_SECONDS):
        yield f"the ledger has {spent:.2f} seconds of {wall_seconds:.2f}"


def _compare(curve: Mapping[int, Line], reference: Mapping[int, float], num_steps: int) -> Iterator[str]:
    missing = [step for step in range(1, num_steps + 1) if step not in curve]
    if missing or len(curve) != num_steps:
        yield f"{len(missing)} steps are not in the committed history, the first of them {missing[:5]}"
        return
    slot = 0
    for step in range(1, num_steps + 1):
        if curve[step]["first_slot"] != slot:
            yield f"step {step} begins with slot {curve[step]['first_slot']} instead of {slot}"
        slot = curve[step]["last_slot"] + 1
    apart = {step: abs(curve[step]["loss"] - reference[step]) for step in curve}
    worst = max(apart, key=lambda step: apart[step])
    if apart[worst] > CURVES_APART:
        yield f"the loss of step {worst} differs by {apart[worst]:.2g} from that of an undisturbed job"


def find_second_worlds(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the generations that went on training after a later one had begun.

    One line may be late: that of a process which was stopped between a step and the word about it.
    """
    newest, late = 0, dict[int, int]()
    for line in lines:
        if line["generation"] < newest:
            late[line["generation"]] = late.get(line["generation"], 0) + 1
        newest = max(newest, line["generation"])
    for generation, number in late.items():
        if number > 1:
            yield f"generation {generation} made {number} steps after a later one had begun"
