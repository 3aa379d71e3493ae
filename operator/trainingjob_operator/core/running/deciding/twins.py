"""Twins: failures that are the same, as proof that the program would fail so again and again.

The program is the same each time, and so are its data at a step. So what it raises twice at one step, or twice before
its first, it will raise a third time. But machines fail alike too: what a store, the network or a device does may pass,
and proves nothing. Where a failure came from one node alone, the node may be what is broken. It becomes a bad node by
the second of them, which is avoided where that can be: only a third one, or one from elsewhere, shows that it is not.
And a saved step between two failures shows that training gets on.
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
"""Failures that follow from the program and what it is given."""
MAY_BE_FAILURES = frozenset({*FailureReason, Reason.HUNG_HOST, Reason.CONTAINER_EXITED})
"""As what an attempt tells of a failure. An exit of a container is not always one."""


def find_proof(seen: Observed, end: End) -> Twins:
    """Return the failures that prove, with this one, that the program fails so each time; none where they do not."""
    cause = end.cause
    is_place_known = cause.step is not None or not seen.has_stepped
    if cause.reason not in REPEATABLE or not is_place_known:
        return ()
    twins = tuple(one for one in _list_failures(seen) if one.cause and _are_alike(one, one.cause, cause))
    may_be_a_node = end.alone and cause.reason not in NOT_BY_A_NODE
    is_of_one_node = may_be_a_node and all(one.cause and one.cause.node == cause.node for one in twins)
    return twins if len(twins) >= (2 if is_of_one_node else 1) else ()


def describe_twins(place: str, cause: Cause, twins: Twins) -> str:
    """Return what people are told of them; `place` is where the last one happened."""
    what = "training before its first step" if cause.step is None else f"step {cause.step:,}"
    often = "twice" if len(twins) == 1 else f"{len(twins) + 1} times"
    first = twins[0].generation
    head = f"The same error stopped {what} {often}, the last time on {place}, first in attempt {first}:"
    return "\n".join(text for text in (head, f"  {cause.message}", cause.log) if text)


def _list_failures(seen: Observed) -> Twins:
    """Return the worlds that failed before this one, without a newly saved step since, as far as they are known."""
    in_a_row = seen.failures_in_a_row
    failed = tuple(one for one in seen.status.attempts if one.cause and one.cause.reason in MAY_BE_FAILURES)
    return failed[-in_a_row:] if in_a_row else ()


def _are_alike(attempt: Attempt, before: Cause, cause: Cause) -> bool:
    """Return whether a world ended for the same reason at the same step, or before its first as this one did."""
    has_stepped = (attempt.last_step or 0) > (attempt.first_step or 0)
    is_place_known = before.step is not None or not has_stepped
    same = (before.reason, before.message, before.step) == (cause.reason, cause.message, cause.step)
    return is_place_known and same
