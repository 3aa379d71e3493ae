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
"""

from collections.abc import Collection, Sequence
from math import inf

from trainingjob_api.base import seconds
from trainingjob_api.protocol import Evidence, Phase, ProcessState
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
"""The same where all of the phase is reading and writing, and its host neither reads nor writes."""
READ_OR_WRITE = frozenset({Phase.PREPARING, Phase.RESTORING, Phase.SAVING})
"""Phases that do so from their beginning to their end, once the text was tokenised."""
AT_WORK = (Standing.ACTIVE, Standing.JOINING)
AFTER_A_STEP = frozenset({Phase.EVALUATING, Phase.SAVING})
"""What all members begin together, once each is through with a step."""
NOT_JOINED = Evidence(state=ProcessState.SLEEPING, cores=0.0, entered=0, newest="nothing")
"""What a member shows whose agent has not handed the world to a child yet."""


def find_hang(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> Hangs | Broke | None:  # None: it goes on
    """Return whether a world whose members are all well hangs, and which member keeps it, once that can be told."""
    overdue = -_seconds_left(plan, seen, placed)
    if overdue < 0:
        return None
    still = min(_still(item, seen) for item in placed)
    last = max(_quickest(seen, placed), key=lambda item: _patience(plan, seen, item, placed))
    clues = tuple(_clue(item) for item in placed)
    if None in clues and overdue < EXAMINATION_SECONDS:
        return Hangs(f"no host has made progress for {span(still)}; asking all of them where they stand")
    suspect = find_suspect(clues)
    return Broke(_end(plan, placed, clues, suspect, still, _work(last, placed)))


def stands_still(plan: Plan, seen: Observed, unheard: float) -> bool:
    """Return whether no host that is at work can be expected to come further: each has used up its budget.

    Hosts that are not heard of say nothing about that; where none is, `unheard` is how long the world may be so.
    """
    placed = place_all(seen.seats, seen.hearing, plan.silence_seconds)
    heard = [item for item in placed if item.standing in AT_WORK]
    if not heard:
        return all(_still(item, seen) > unheard for item in placed)
    return all(_patience(plan, seen, item, placed) <= 0 for item in _quickest(seen, heard))


def seconds_left(plan: Plan, seen: Observed) -> float:
    """Return how long the world may stand still from now on before it hangs."""
    return _seconds_left(plan, seen, place_all(seen.seats, seen.hearing, plan.silence_seconds))


def _seconds_left(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    if not all(item.standing in AT_WORK for item in placed):
        return inf
    return max((_patience(plan, seen, item, placed) for item in _quickest(seen, placed)), default=inf)


def _patience(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return for how much longer a member may stand still."""
    return _budget(plan, seen, item, placed) - _still(item, seen)


def _quickest(seen: Observed, placed: Sequence[Placed]) -> Collection[Placed]:
    """Return of the members that are at the same work, and so have the same budget, the one that came further last.

    A budget takes a look at all members, and of these there may be thousands.
    """
    quickest: dict[tuple[Phase, int, bool], Placed] = {}
    for item in placed:
        work = _phase(item), _step(item), _tells(item)
        if work not in quickest or _still(item, seen) < _still(quickest[work], seen):
            quickest[work] = item
    return quickest.values()


def _still(item: Placed, seen: Observed) -> float:
    """Return how long a member has made no progress in this world: what it did before does not count."""
    return min(item.still, seen.hearing.announced)


def _budget(plan: Plan, seen: Observed, item: Placed, placed: Sequence[Placed]) -> float:
    """Return how long a member may stand still in what it does now."""
    work = _work(item, placed)
    hung = [one.cause for one in reversed(seen.status.attempts) if one.cause and one.cause.reason == Reason.HUNG_HOST]
    doublings = sum(cause.phase == work for cause in hung[: seen.failures_in_a_row])
    if work is Phase.TRAINING:
        return _budget_of_steps(plan, seen, placed) * 2.0**doublings
    reports = [other.seat.report for other in placed if other.seat.report]
    longest = max((report.phase_seconds.get(work, 0.0) for report in reports), default=0.0)
    least = IDLE_SECONDS if longest and _tells(item) and work in READ_OR_WRITE else ALLOWANCES[work]
    return max(TIMES_OF_BUDGET * longest, least) * 2.0**doublings


def _work(item: Placed, placed: Sequence[Placed]) -> Phase:
    """Return what a member does, as far as its budget goes: that of those it waits for, where it can only wait."""
    phase = _phase(item)
    if phase in AFTER_A_STEP and _is_ahead(item, placed):
        return Phase.TRAINING
    if phase is Phase.PREPARING and any(_phase(other) is not Phase.PREPARING for other in placed):
        return Phase.CONNECTING  # another one is through, so the data is there
    return phase


def _tells(item: Placed) -> bool:
    """Return whether it is seen when a member reads or writes."""
    return item.seat.report is not None and item.seat.report.moved_mebibytes is not None


def _phase(item: Placed) -> Phase:
    """Return what a member does. Who has not begun yet is about to prepare."""
    return item.seat.report.phase if item.seat.report else Phase.PREPARING


def _is_ahead(item: Placed, placed: Sequence[Placed]) -> bool:
    """Return whether another member is in a step that this one is through with, so that this one waits for it."""
    return any(_phase(other) is Phase.TRAINING and _step(other) < _step(item) for other in placed)


def _step(item: Placed) -> int:
    """Return the newest step that a member has finished in this world; 0: none."""
    progress = item.seat.report.progress if item.seat.report else None
    return progress.step if progress else 0


def _budget_of_steps(plan: Plan, seen: Observed, placed: Sequence[Placed]) -> float:
    allowed = plan.spec.elastic.hang_after
    floor = seconds(allowed) if allowed else max(HANG_SECONDS, 2 * plan.silence_seconds)
    steps = [item.seat.report.progress for item in placed if item.seat.report and item.seat.report.progress]
    typical = max((step.typical_seconds for step in steps if step.typical_seconds), default=None)
    if typical is not None:
        return max(floor, STEPS_OF_BUDGET * typical)
    # The first steps of this world. One before it tells what to expect, at another size perhaps.
    known = seen.status.progress.step_seconds if seen.status.progress else None
    return max(floor, TIMES_OF_BUDGET * STEPS_OF_BUDGET * known) if known else FIRST_STEPS_SECONDS


def _clue(item: Placed) -> Evidence | None:  # None: its agent has not told yet
    return item.evidence if item.seat.report else NOT_JOINED


def _end(
    plan: Plan,
    placed: Sequence[Placed],
    clues: Sequence[Evidence | None],
    suspect: Suspect | None,
    still: float,
    work: Phase,
) -> End:
    steps = [item.seat.report.progress.step for item in placed if item.seat.report and item.seat.report.progress]
    cause = Cause(reason=Reason.HUNG_HOST, step=max(steps) + 1 if steps else None, phase=work)
    stood = f"no host of the world made progress for {span(still)}"
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
