"""A hang: all hosts of a world report, and none of them comes any further.

Each host has a budget for what it does now. A world hangs when every member has stood still for longer than its own:
one that still comes further keeps all others waiting for a good reason. Then the hosts are asked what their processes
look like; when all have told, or had time to, the world is replaced and the one that kept the others is named.

Budgets are learnt from the run. What was measured stands in the status and in the hosts' own reports, so an operator
that has just started knows as much; only the standstill itself begins anew for it.

A phase that was quick so far says little: what is restored may have been nothing, what is saved may be written beside
training, a program may have been loaded. So it makes a budget shorter only where a host that works is seen to: by what
it reads and writes, all of which counts as coming further. And whatever a budget is, one that ended a world is doubled
for the next ones until a step is saved: a host that was only slow comes through in the end.

Before the first step of a world, two more facts end a wait. Both come from the kernel, so the speed of the machine does
not matter. A stopped process does nothing: the world ends after the shortest budget. A process that uses no CPU time
and neither reads nor writes is idle: where all processes are idle, none of them compiles or prepares anything.
Every member that reports has a budget in each state, also before its first report about this world.
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
"""How long a training world may stand still at least: a pause of the storage or of the network is no hang."""
STEPS_OF_BUDGET = 10.0
"""How many of its median steps a standstill must last."""
FIRST_STEPS_SECONDS = 1800.0
"""How long the first steps may take where nothing was measured yet: a step may be as long as its job likes."""
TIMES_OF_BUDGET = 4.0
"""How many times the longest that was measured another phase may take."""
ALLOWANCES = {
    Phase.PREPARING: 12 * 3600.0,  # one document is tokenised in one piece
    Phase.CONNECTING: 240.0,  # the trainer itself gives up after 300
    Phase.RESTORING: 1500.0,  # this and the next ones: after 1800
    Phase.COMPILING: 1500.0,
    Phase.EVALUATING: 1500.0,
    Phase.SAVING: 1500.0,
}
"""How many seconds a phase may stand still."""
IDLE_SECONDS = 300.0
"""The same where all of the phase is reading and writing, and its host neither reads nor writes.

And before the first step wherever a host neither does that nor uses CPU time."""
READ_OR_WRITE = frozenset({Phase.PREPARING, Phase.RESTORING, Phase.SAVING})
"""Phases that do so from their beginning to their end, once the text was tokenised."""
AT_WORK = (Standing.ACTIVE, Standing.JOINING)
AFTER_A_STEP = frozenset({Phase.EVALUATING, Phase.SAVING})
"""What all members begin together, once each is through with a step."""
NOT_JOINED = Evidence(state=ProcessState.SLEEPING, cores=0.0, entered=0, newest="nothing")
"""What a member shows whose agent has not handed the world to a child yet."""
STOPPED_EARLY = NOT_JOINED.model_copy(update={"state": ProcessState.STOPPED})
"""What a member shows whose agent reports that its process is stopped, and nothing else."""
ORDER = (Phase.PREPARING, Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING)
"""The phases before the first step, which all members come through in this order."""


def find_hang(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> Hangs | Broke | None:  # None: it goes on
    """Return whether a world whose members are all well hangs, and which member keeps it, once that can be told."""
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
    """Return whether no host that is at work can be expected to come further: each has used up its budget.

    Hosts that are not heard of say nothing about that; where none is, `unheard` is how long the world may be so.
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
    """Return how long the world may stand still from now on before it hangs."""
    return _seconds_left(plan, seen, place_all(seen.seats, seen.hearing, plan.silence_seconds))


def _seconds_left(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    of_stopped = min((_stop_patience(plan, seen, item) for item in placed), default=inf)
    if not placed or not all(item.standing in AT_WORK for item in placed):
        return of_stopped
    return min(of_stopped, max(_list_patience(plan, seen, placed, placed)))


def _list_patience(plan: Plan, seen: Observed, items: Sequence[Placed], placed: Sequence[Placed]) -> list[float]:
    """Return for how much longer each of some members of a world may stand still.

    Those that are at the same work have the same budgets, for each of which all members are looked at: of these there
    may be thousands.
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
    """Return for how much longer a member may be stopped that has made no step yet; endless where it is not."""
    if item.standing not in AT_WORK or not item.is_stopped_early:
        return inf
    return _least_budget(plan) - _still(item, seen)


def _still(item: Placed, seen: Observed) -> float:
    """Return how long a member has made no progress in this world: what it did before does not count."""
    return min(item.still, seen.hearing.announced)


def _budget(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return how long a member may make no progress in what it does now."""
    work = _work(item, placed)
    if work is Phase.TRAINING:
        return _budget_of_steps(plan, seen, placed) * _count_hangs(seen, work)
    longest = _longest(work, placed)
    least = IDLE_SECONDS if longest and _tells(item) and work in READ_OR_WRITE else ALLOWANCES[work]
    return max(TIMES_OF_BUDGET * longest, least) * _count_hangs(seen, work)


def _budget_of_idling(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return how long a member may use no CPU time either; endless where that is not known, or says nothing."""
    work = _work(item, placed)
    if work not in STARTING_UP or not _tells_cpu(item) or not (_tells(item) or item.seat.report is None):
        return inf
    return max(TIMES_OF_BUDGET * _longest(work, placed), IDLE_SECONDS) * _count_hangs(seen, work)


def _count_hangs(seen: Observed, work: Phase) -> float:
    """Return by how much a budget is longer because it has ended worlds since a step was saved."""
    hung = [one.cause for one in reversed(seen.status.attempts) if one.cause and one.cause.reason == Reason.HUNG_HOST]
    return 2.0 ** sum(cause.phase == work for cause in hung[: seen.failures_in_a_row])


def _longest(work: Phase, placed: Sequence[Placed]) -> float:
    """Return the longest that a member has told to have taken for some work."""
    reports = [other.seat.report for other in placed if other.seat.report]
    return max((report.phase_seconds.get(work, 0.0) for report in reports), default=0.0)


def _work(item: Placed, placed: Sequence[Placed]) -> Phase:
    """Return what a member does, as far as its budget goes: that of those it waits for, where it can only wait."""
    phase = _phase(item)
    if phase is None:
        return Phase.CONNECTING  # it only has to begin
    if phase in AFTER_A_STEP and _is_ahead(item, placed):
        return Phase.TRAINING
    if phase is Phase.PREPARING and any(_phase(other) is not Phase.PREPARING for other in placed):
        return Phase.CONNECTING  # another one is through, so the data is there
    return phase


def _tells(item: Placed) -> bool:
    """Return whether it is seen when a member reads or writes."""
    return item.seat.report is not None and item.seat.report.moved_mebibytes is not None


def _tells_cpu(item: Placed) -> bool:
    """Return whether it is seen when the process of a member uses CPU time."""
    return item.seat.news is not None and item.seat.news.report.cpu_seconds is not None


def _phase(item: Placed) -> Phase | None:  # None: it has not begun
    """Return what a member does."""
    return item.seat.report.phase if item.seat.report else None


def _stage(item: Placed) -> int:
    """Return how far a member has come on the way to its first step: nobody is held up by one that is further."""
    phase = _phase(item)
    return -1 if phase is None else ORDER.index(phase) if phase in ORDER else len(ORDER)


def _is_ahead(item: Placed, placed: Sequence[Placed]) -> bool:
    """Return whether another member is in a step that this one is through with, so that this one waits for it."""
    return any(_phase(other) is Phase.TRAINING and _step(other) < _step(item) for other in placed)


def _step(item: Placed) -> int:
    """Return the newest step that a member has finished in this world; 0: none."""
    progress = item.seat.report.progress if item.seat.report else None
    return progress.step if progress else 0


def _budget_of_steps(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    floor = _least_budget(plan)
    steps = [item.seat.report.progress for item in placed if item.seat.report and item.seat.report.progress]
    typical = max((step.typical_seconds for step in steps if step.typical_seconds), default=None)
    if typical is not None:
        return max(floor, STEPS_OF_BUDGET * typical)
    # The first steps of this world. One before it tells what to expect, at another size perhaps.
    known = seen.status.progress.step_seconds if seen.status.progress else None
    return max(floor, TIMES_OF_BUDGET * STEPS_OF_BUDGET * known) if known else FIRST_STEPS_SECONDS


def _least_budget(plan: Plan) -> float:
    allowed = plan.spec.elastic.hang_after
    return seconds(allowed) if allowed else max(HANG_SECONDS, 2 * plan.silence_seconds)


def _clue(item: Placed) -> Evidence | None:  # None: its agent has not told yet
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
