"""Hangs: all hosts of a world send heartbeats, but none makes progress.

Each host has a progress timeout for its current phase. A world hangs when every member has exceeded its own timeout; a
member that still makes progress has a good reason to keep the others waiting. The operator then collects diagnostics
from all hosts. When all have answered, or had time to, it replaces the world and names the host that blocks the others.

Timeouts are derived from the run. The measurements are in the status and in the hosts' reports, so a restarted operator
has them too. Only the time without progress starts from zero for it.

A short earlier phase proves little. A restore may have had nothing to read, a save may have been written in the
background, a program may have come from the cache. It therefore shortens a timeout only if the host reports its file
I/O, which counts as progress. A timeout that ended a world is doubled until a step is saved, so that a slow host gets
through eventually.

Before the first step of a world, two more signals end a wait. Both come from the kernel and do not depend on the speed
of the machine:

- A stopped process makes no progress. The world ends after the shortest timeout.
- A process without CPU time and file I/O is idle. If all processes are idle, none of them compiles or prepares.

Every member that reports has a timeout in each state, also before its first report about this world.
"""

from collections.abc import Sequence
from math import inf

from trainingjob_api.base import seconds
from trainingjob_api.protocol import STARTING_UP, Evidence, Phase, ProcessState
from trainingjob_api.status import Cause
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.judging.health import EXAMINATION_SECONDS, Broke, End, Hangs
from trainingjob_operator.core.running.judging.standing import Placed, Standing, place_all
from trainingjob_operator.core.running.judging.suspects import Suspect, find_suspect
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.units import plural, span

HANG_SECONDS = 30.0
"""Minimum timeout of a training world. It outlasts short pauses of the storage or the network."""
STEPS_OF_BUDGET = 10.0
"""Timeout of a training world, in median step times."""
FIRST_STEPS_SECONDS = 1800.0
"""Timeout of the first steps if no step time is known."""
TIMES_OF_BUDGET = 4.0
"""Timeout of another phase, as a multiple of its longest measured duration."""
ALLOWANCES = {
    Phase.PREPARING: 12 * 3600.0,  # a document is tokenized as a whole
    Phase.CONNECTING: 240.0,  # the trainer's own limit is 300
    Phase.RESTORING: 1500.0,  # this and the next ones: the trainer's limit is 1800
    Phase.COMPILING: 1500.0,
    Phase.EVALUATING: 1500.0,
    Phase.SAVING: 1500.0,
}
"""Minimum timeout of each phase, in seconds."""
IDLE_SECONDS = 300.0
"""Minimum timeout of phases that consist of file I/O, if the host reports its I/O.

Before the first step it is also the minimum timeout of a host that uses no CPU time and does no I/O.
"""
READ_OR_WRITE = frozenset({Phase.PREPARING, Phase.RESTORING, Phase.SAVING})
"""Phases that consist of file I/O, once the text is tokenized."""
AT_WORK = (Standing.ACTIVE, Standing.JOINING)
AFTER_A_STEP = frozenset({Phase.EVALUATING, Phase.SAVING})
"""Phases that all members enter together, after each has completed a step."""
NOT_JOINED = Evidence(state=ProcessState.SLEEPING, cores=0.0, entered=0, newest="nothing")
"""Evidence of a member whose agent has not passed the world to a trainer process yet."""
STOPPED_EARLY = NOT_JOINED.model_copy(update={"state": ProcessState.STOPPED})
"""Evidence of a member whose agent reports only that the process is stopped."""
ORDER = (Phase.PREPARING, Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING)
"""Phases before the first step, in the order in which every member enters them."""


def find_hang(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> Hangs | Broke | None:  # None: no hang
    """Return whether a world of healthy members hangs. Name the member that blocks it once diagnostics are complete."""
    overdue = -_seconds_left(plan, seen, placed)
    if overdue < 0:
        return None
    clues = tuple(_clue(item) for item in placed)
    stopped = _list_stopped(plan, seen, placed)
    if stopped:
        last, still = stopped[0], max(_still(item, seen) for item in stopped)
        stood = f"the world has waited {span(still)} for a stopped process"
        asks = f"{stood}; asking all hosts where they stand"
    else:
        patience = _list_patience(plan, seen, placed, placed)
        last, still = placed[patience.index(max(patience))], min(_still(item, seen) for item in placed)
        stood = f"no host of the world made progress for {span(still)}"
        asks = f"no host has made progress for {span(still)}; asking all of them where they stand"
    if None in clues and overdue < EXAMINATION_SECONDS:
        return Hangs(asks)
    told = zip(placed, clues, strict=True)
    clues = tuple(STOPPED_EARLY if clue is None and item.is_stopped_early else clue for item, clue in told)
    suspect = find_suspect(clues, tuple(_stage(item) for item in placed))
    return Broke(_end(plan, placed, clues, suspect, stood, still, _work(last, placed)))


def stands_still(plan: Plan, seen: Observed, unheard: float) -> bool:
    """Return whether every reporting host that is at work has exceeded its progress timeout.

    Hosts without heartbeats are ignored. If no host reports, `unheard` is the timeout in seconds.
    """
    placed = place_all(seen.seats, seen.hearing, plan.silence_seconds)
    heard = [item for item in placed if item.standing in AT_WORK]
    if not heard:
        return all(_still(item, seen) > unheard for item in placed)
    return bool(_list_stopped(plan, seen, placed)) or max(_list_patience(plan, seen, heard, placed)) <= 0


def waits_for_stopped(plan: Plan, seen: Observed) -> bool:
    """Return whether a process was stopped for too long before its first step."""
    return bool(_list_stopped(plan, seen, place_all(seen.seats, seen.hearing, plan.silence_seconds)))


def seconds_left(plan: Plan, seen: Observed) -> float:
    """Return the seconds without progress after which the world counts as hung."""
    return _seconds_left(plan, seen, place_all(seen.seats, seen.hearing, plan.silence_seconds))


def _seconds_left(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    of_stopped = min((_stop_patience(plan, seen, item) for item in placed), default=inf)
    if not placed or not all(item.standing in AT_WORK for item in placed):
        return of_stopped
    return min(of_stopped, max(_list_patience(plan, seen, placed, placed)))


def _list_patience(plan: Plan, seen: Observed, items: Sequence[Placed], placed: Sequence[Placed]) -> list[float]:
    """Return the remaining seconds of the progress timeout of some members.

    Members in the same phase and step share their timeouts. Each timeout needs a pass over all members, of which there
    may be thousands, so equal ones are computed once.
    """
    budgets: dict[tuple[Phase | None, int, bool, bool], tuple[float, float]] = {}
    patience = []
    for item in items:
        work = _phase(item), _step(item), _tells(item), _tells_cpu(item)
        if work not in budgets:
            budgets[work] = _budget(plan, seen, item, placed), _budget_of_idling(plan, seen, item, placed)
        of_progress, of_work = budgets[work]
        patience.append(min(of_progress - _still(item, seen), of_work - min(item.idle, seen.hearing.announced)))
    return patience


def _list_stopped(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> list[Placed]:
    """Return the members whose processes were stopped for too long before their first step."""
    return [item for item in placed if _stop_patience(plan, seen, item) <= 0]


def _stop_patience(plan: Plan, seen: Observed, item: Placed) -> float:
    """Return the seconds that a member may still be stopped before its first step; infinite if it is not stopped."""
    if item.standing not in AT_WORK or not item.is_stopped_early:
        return inf
    return _least_budget(plan) - _still(item, seen)


def _still(item: Placed, seen: Observed) -> float:
    """Return the seconds without progress of a member in this world. Time before the world does not count."""
    return min(item.still, seen.hearing.announced)


def _budget(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return the progress timeout of a member in its current phase."""
    work = _work(item, placed)
    if work is Phase.TRAINING:
        return _budget_of_steps(plan, seen, placed) * _count_hangs(seen, work)
    longest = _longest(work, placed)
    least = IDLE_SECONDS if longest and _tells(item) and work in READ_OR_WRITE else ALLOWANCES[work]
    return max(TIMES_OF_BUDGET * longest, least) * _count_hangs(seen, work)


def _budget_of_idling(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return the timeout without CPU time or progress; infinite if CPU time is not reported or not meaningful."""
    work = _work(item, placed)
    if work not in STARTING_UP or not _tells_cpu(item) or not (_tells(item) or item.seat.report is None):
        return inf
    return max(TIMES_OF_BUDGET * _longest(work, placed), IDLE_SECONDS) * _count_hangs(seen, work)


def _count_hangs(seen: Observed, work: Phase) -> float:
    """Return the factor of a timeout: doubled for each world that it ended since a step was saved."""
    hung = [one.cause for one in reversed(seen.status.attempts) if one.cause and one.cause.reason == Reason.HUNG_HOST]
    return 2.0 ** sum(cause.phase == work for cause in hung[: seen.failures_in_a_row])


def _longest(work: Phase, placed: Sequence[Placed]) -> float:
    """Return the longest duration of a phase that any member has reported."""
    reports = [other.seat.report for other in placed if other.seat.report]
    return max((report.phase_seconds.get(work, 0.0) for report in reports), default=0.0)


def _work(item: Placed, placed: Sequence[Placed]) -> Phase:
    """Return the phase that sets a member's timeout. A member that only waits has the phase of those it waits for."""
    phase = _phase(item)
    if phase is None:
        return Phase.CONNECTING  # it only has to join
    if phase in AFTER_A_STEP and _is_ahead(item, placed):
        return Phase.TRAINING
    if phase is Phase.PREPARING and any(_phase(other) is not Phase.PREPARING for other in placed):
        return Phase.CONNECTING  # another member has finished, so the data is prepared
    return phase


def _tells(item: Placed) -> bool:
    """Return whether a member reports its file I/O."""
    return item.seat.report is not None and item.seat.report.moved_mebibytes is not None


def _tells_cpu(item: Placed) -> bool:
    """Return whether a member reports its CPU time."""
    return item.seat.news is not None and item.seat.news.report.cpu_seconds is not None


def _phase(item: Placed) -> Phase | None:  # None: not joined yet
    return item.seat.report.phase if item.seat.report else None


def _stage(item: Placed) -> int:
    """Return the rank of a member's phase before its first step. A member never waits for one with a higher rank."""
    phase = _phase(item)
    return -1 if phase is None else ORDER.index(phase) if phase in ORDER else len(ORDER)


def _is_ahead(item: Placed, placed: Sequence[Placed]) -> bool:
    """Return whether this member waits for another one that is still in a step which this member has completed."""
    return any(_phase(other) is Phase.TRAINING and _step(other) < _step(item) for other in placed)


def _step(item: Placed) -> int:
    """Return the newest step that a member has completed in this world. 0: none."""
    progress = item.seat.report.progress if item.seat.report else None
    return progress.step if progress else 0


def _budget_of_steps(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    floor = _least_budget(plan)
    steps = [item.seat.report.progress for item in placed if item.seat.report and item.seat.report.progress]
    typical = max((step.typical_seconds for step in steps if step.typical_seconds), default=None)
    if typical is not None:
        return max(floor, STEPS_OF_BUDGET * typical)
    # First steps of this world: use the step time of an earlier world, perhaps of another size.
    known = seen.status.progress.step_seconds if seen.status.progress else None
    return max(floor, TIMES_OF_BUDGET * STEPS_OF_BUDGET * known) if known else FIRST_STEPS_SECONDS


def _least_budget(plan: Plan) -> float:
    allowed = plan.spec.elastic.hang_after
    return seconds(allowed) if allowed else max(HANG_SECONDS, 2 * plan.silence_seconds)


def _clue(item: Placed) -> Evidence | None:  # None: no diagnostics yet
    if item.seat.report:
        return item.evidence
    return STOPPED_EARLY if item.is_stopped_early else NOT_JOINED


def _end(
    plan: Plan,
    placed: Sequence[Placed],
    clues: Sequence[Evidence | None],
    suspect: Suspect | None,
    stood: str,
    still: float,
    work: Phase,
) -> End:
    steps = [item.seat.report.progress.step for item in placed if item.seat.report and item.seat.report.progress]
    cause = Cause(reason=Reason.HUNG_HOST, step=max(steps) + 1 if steps else None, phase=work)
    stacks = f"Where all of them stood: {plan.spec.checkpoint.uri}/stacks"
    if suspect is None:
        told = sum(clue is not None for clue in clues)
        words = f"{stood}, and which of them keeps the others is unknown: {told} of {plural(len(clues), 'host')} told "
        words += f"where it stands, and nothing tells one apart. {stacks}"
        return End(cause.model_copy(update={"message": words[:1024]}), counted=True, ago=still)
    member, clue = placed[suspect.index].seat.member, clues[suspect.index]
    words = f"host {member.host} of slice {member.slice} hangs: {stood}, and {suspect.why}. {stacks}"
    named = {
        "message": words[:1024],
        "slice": member.slice,
        "host": member.host,
        "node": member.node,
        "log": clue.stack if clue else "",
    }
    alone = any(item.seat.member.node != member.node for item in placed)
    return End(cause.model_copy(update=named), counted=True, ago=still, alone=alone)
