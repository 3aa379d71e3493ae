"""Repeated failures: equal failures as evidence that every restart would fail in the same way.

The program and its data at a step are the same in each attempt. An error that occurs twice at one step, or twice before
the first step, will therefore occur again. Failures of a storage, the network or a device may be transient and prove
nothing.

If the equal failures came from one node alone, that node may be the cause. The second one makes it a bad node, which
the job then avoids if it can. Only a third one, or one from another node, shows that the program is the cause. A step
saved between two failures also disproves a repetition.
"""

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status import Attempt, Cause
from trainingjob_operator.core.running.judging.bad_nodes import NOT_BY_A_NODE
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason

type Twins = tuple[Attempt, ...]

REPEATABLE = frozenset(
    {
        FailureReason.CONFIG,
        FailureReason.DATA,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.NON_FINITE,
        FailureReason.LOSS_SPIKE,
        FailureReason.CRASH,
    }
)
"""Failures that the program or its input causes."""
MAY_BE_FAILURES = frozenset({*FailureReason, Reason.HUNG_HOST, Reason.CONTAINER_EXITED})
"""Reasons that an attempt may have for a failure. A container exit is not always one."""


def find_proof(seen: Observed, end: End) -> Twins:
    """Return the earlier failures that, with this one, show that every restart would fail; empty if none do."""
    cause = end.cause
    is_place_known = cause.step is not None or not seen.has_stepped
    if cause.reason not in REPEATABLE or not is_place_known:
        return ()
    twins = tuple(one for one in _list_failures(seen) if one.cause and _are_alike(one, one.cause, cause))
    may_be_a_node = end.alone and cause.reason not in NOT_BY_A_NODE
    is_of_one_node = may_be_a_node and all(one.cause and one.cause.node == cause.node for one in twins)
    return twins if len(twins) >= (2 if is_of_one_node else 1) else ()


def describe_twins(place: str, cause: Cause, twins: Twins) -> str:
    """Return the message about repeated failures. `place` is the location of the last one."""
    what = "training before its first step" if cause.step is None else f"step {cause.step:,}"
    often = "twice" if len(twins) == 1 else f"{len(twins) + 1} times"
    first = twins[0].generation
    head = f"The same error stopped {what} {often}, the last time on {place}, first in attempt {first}:"
    return "\n".join(text for text in (head, f"  {cause.message}", cause.log) if text)


def _list_failures(seen: Observed) -> Twins:
    """Return the recorded failures since a step was last saved."""
    in_a_row = seen.failures_in_a_row
    failed = tuple(one for one in seen.status.attempts if one.cause and one.cause.reason in MAY_BE_FAILURES)
    return failed[-in_a_row:] if in_a_row else ()


def _are_alike(attempt: Attempt, before: Cause, cause: Cause) -> bool:
    """Return whether two worlds failed for the same reason at the same step, or both before their first step."""
    has_stepped = (attempt.last_step or 0) > (attempt.first_step or 0)
    is_place_known = before.step is not None or not has_stepped
    same = (before.reason, before.message, before.step) == (cause.reason, cause.message, cause.step)
    return is_place_known and same
