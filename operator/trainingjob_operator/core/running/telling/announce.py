"""Effects of a written status: the directive to the job's hosts, and the events for users."""

from collections.abc import Iterable
from dataclasses import dataclass

from trainingjob_api.protocol import Directive
from trainingjob_api.status import TrainingJobStatus
from trainingjob_api.world import World
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.deciding.chores import Chore, DeleteJob
from trainingjob_operator.core.running.deciding.decisions import (
    Claim,
    Decision,
    EndWorld,
    Examine,
    Fail,
    Leave,
    Succeed,
    end_of,
)
from trainingjob_operator.core.running.deciding.drills import describe_drill
from trainingjob_operator.core.running.deciding.rollbacks import describe_rollback
from trainingjob_operator.core.running.deciding.shadows import plan_shadows
from trainingjob_operator.core.running.deciding.strikes import Order, make_order
from trainingjob_operator.core.running.judging.bad_nodes import ENOUGH, describe_bad_node
from trainingjob_operator.core.running.judging.copies import describe_failing_copies
from trainingjob_operator.core.running.judging.saves import describe_failing
from trainingjob_operator.core.running.judging.stragglers import describe
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.pods import Trouble
from trainingjob_operator.core.running.observing.seats import find_restored, find_tier
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.running.telling.completion import describe_completion
from trainingjob_operator.core.running.telling.skips import describe_skips


@dataclass(frozen=True)
class Bulletin:
    """The current directive for all hosts of a job, with its parameters."""

    directive: Directive
    world: World | None = None
    outcome: str = ""
    examine: bool = False
    order: Order | None = None
    """A drill that some hosts must inject."""
    moves: bool = False
    """Whether a world that drains may skip the save."""
    shadows: tuple[World, ...] = ()
    """Hot standby worlds that some hosts wait in."""


@dataclass(frozen=True)
class Happening:
    """A Kubernetes event on the job."""

    reason: str
    message: str
    warning: bool = False


def make_bulletin(plan: Plan, seen: Observed, decision: Decision, written: TrainingJobStatus) -> Bulletin:
    """Return the directive to a job's hosts. The status must be written before."""
    if written.completion_time is not None:
        return Bulletin(Directive.FINISH, outcome=describe_outcome(written))
    if isinstance(decision, Claim):
        return Bulletin(Directive.TRAIN, decision.world)
    if seen.world is None or isinstance(decision, EndWorld):
        return Bulletin(Directive.WAIT)
    leave = decision if isinstance(decision, Leave) else None
    return Bulletin(
        Directive.LEAVE if leave else Directive.TRAIN,
        seen.world,
        examine=isinstance(decision, Examine),
        order=make_order(written, seen.world),
        moves=leave is not None and leave.moves,
        shadows=plan_shadows(plan, seen),
    )


def describe_outcome(status: TrainingJobStatus) -> str:
    """Return the outcome of a job in one text: condition type, reason and message."""
    verdict = next(
        (one for one in status.conditions if one.type in ("Succeeded", "Failed") and one.status == "True"), None
    )
    return f"{verdict.type}: {verdict.reason}: {verdict.message}"[:2048] if verdict else "Ended"


def list_happenings(
    plan: Plan, seen: Observed, decision: Decision, written: TrainingJobStatus, refusal: Trouble | None
) -> tuple[Happening, ...]:
    """Return the events of one reconciliation. No decision depends on them."""
    happenings = [Happening(refusal.reason, refusal.message, warning=True)] if refusal else []
    end = end_of(decision)
    if end is not None and not end.planned:
        happenings.append(Happening(end.cause.reason, end.cause.message, warning=True))
    known = {one.node: one.faults for one in seen.status.nodes}
    happenings += [
        Happening(Reason.BAD_NODE, describe_bad_node(plan, seen, one), warning=True)
        for one in written.nodes
        if one.faults >= ENOUGH and one.faults > known.get(one.node, 0)
    ]
    happenings += [
        Happening(Reason.ROLLED_BACK, describe_rollback(one), warning=True)
        for one in written.rollbacks[len(seen.status.rollbacks) :]
    ]
    match decision:
        case Claim(world, why):
            slices = ", ".join(str(number) for number in world.slices)
            words = f"generation {world.generation} trains on slices {slices}: {why}"
            happenings.append(Happening(Reason.FORMED, words))
        case EndWorld(_, reason, message):
            happenings.append(Happening(reason, message))
        case Leave(reason, message, _) if not _is_leaving(seen):
            happenings.append(Happening(reason, message))
        case Examine(reason, message) if seen.status.display.reason != Reason.EXAMINING:
            happenings.append(Happening(reason, message))
        case Succeed():
            happenings.append(Happening(Reason.COMPLETED, describe_completion(plan, seen)))
        case Fail(reason, message):
            happenings.append(Happening(reason, message, warning=True))
    happenings += [*_drills(seen, written), *_stragglers(seen, written), *_skips(seen, written), *_data(seen, written)]
    happenings += [*_failing_saves(plan, seen, written), *_failing_copies(plan, seen, written)]
    return (*happenings, *_damages(seen), *_restored_copies(plan, seen), *_inheritances(seen))


def list_repairs(chores: Iterable[Chore]) -> tuple[Happening, ...]:
    """Return the events about running pods that are deleted to recreate a slice."""
    return tuple(
        Happening(Reason.SLICE_REMADE, chore.why, warning=True)
        for chore in chores
        if isinstance(chore, DeleteJob) and chore.why
    )


def _is_leaving(seen: Observed) -> bool:
    return seen.status.phase in ("Resizing", "Suspending")


def _is_restoring(seen: Observed) -> bool:
    """Return whether the status does not record yet which step the committed world resumed from."""
    attempts = seen.status.attempts
    return bool(attempts) and attempts[-1].first_step is None


def _drills(seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the events of drills whose state changed."""
    before = {one.id: one.state for one in seen.status.drills}
    return [
        Happening(Reason.DRILL, describe_drill(one), warning=one.state == "injected")
        for one in written.drills
        if one.state != before.get(one.id)
    ]


def _stragglers(seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the event of a new straggler."""
    before, now = seen.status.straggler, written.straggler
    if now is None or (before is not None and before.since == now.since):
        return []
    return [Happening(Reason.SLOW_HOST, describe(now), warning=True)]


def _skips(seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the event of frequent skipped updates, once they become frequent."""
    words = describe_skips(written.progress)
    is_new = words and not describe_skips(seen.status.progress)
    return [Happening(Reason.UPDATES_SKIPPED, words, warning=True)] if is_new else []


def _data(seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the events of new warnings about the dataset."""
    before = seen.status.data.warnings if seen.status.data else ()
    now = written.data.warnings if written.data else ()
    return [Happening(Reason.UNUSUAL_DATA, words, warning=True) for words in now if words not in before]


def _failing_saves(plan: Plan, seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the event of failing saves, once they begin to fail."""
    failing = written.failing_saves
    if failing is None or seen.status.failing_saves is not None:
        return []
    return [Happening(Reason.CHECKPOINT_FAILING, describe_failing(plan, seen, failing), warning=True)]


def _failing_copies(plan: Plan, seen: Observed, written: TrainingJobStatus) -> list[Happening]:
    """Return the event of failing backups, once they begin to fail."""
    failing = written.failing_copies
    if failing is None or seen.status.failing_copies is not None:
        return []
    return [Happening(Reason.BACKUP_FAILING, describe_failing_copies(plan, seen, failing), warning=True)]


def _restored_copies(plan: Plan, seen: Observed) -> list[Happening]:
    """Return the event of a world that resumed from a backup, once it is known."""
    backup = plan.spec.checkpoint.backup
    if backup is None or not _is_restoring(seen) or find_tier(seen.seats) != "backup":
        return []
    words = (
        f"went on from step {find_restored(seen.seats):,} in {backup.uri}: {plan.spec.checkpoint.uri} has no step as "
        "new that is whole"
    )
    return [Happening(Reason.RESTORED_FROM_BACKUP, words, warning=True)]


def _inheritances(seen: Observed) -> list[Happening]:
    """Return the event of a first world that started from another job's parameters, once it is known."""
    if not _is_restoring(seen):
        return []
    told = {seat.report.inherited for seat in seen.seats if seat.report and seat.report.restored is not None}
    return [Happening(Reason.INITIALIZED, f"began with the parameters of {words}") for words in sorted(told - {""})]


def _damages(seen: Observed) -> list[Happening]:
    """Return the events of damaged checkpoints that a world skipped at restore, once they are known."""
    if not _is_restoring(seen):
        return []
    damages = {
        damage
        for seat in seen.seats
        if seat.report and seat.report.restored is not None
        for damage in seat.report.damaged
    }
    return [
        Happening(Reason.CHECKPOINT_DAMAGED, f"step {damage.step} was skipped: {damage.message}", warning=True)
        for damage in sorted(damages, key=lambda damage: damage.step)
    ]
