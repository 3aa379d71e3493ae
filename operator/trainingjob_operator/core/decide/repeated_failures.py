"""Repeated failures: equal failures as evidence that every restart would fail in the same way.

The program and its data at a step are the same in each attempt. An error that occurs twice at one step, or twice before
the first step, will therefore occur again. Failures of a storage, the network or a device may be transient and prove
nothing.

If the equal failures came from one node alone, that node may be the cause. The second one makes it a bad node, which
the job then avoids if it can. Only a third one, or one from another node, shows that the program is the cause. A step
saved between two failures also disproves a repetition.
"""

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status.world_status import Attempt, Cause
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_faults import NODE_INDEPENDENT_REASONS
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.reasons import Reason

type RepeatedFailures = tuple[Attempt, ...]

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
FAILURE_REASONS = frozenset({*FailureReason, Reason.HUNG_HOST, Reason.CONTAINER_EXITED})
"""Reasons that an attempt may have for a failure. A container exit is not always one."""


def find_repeated_failure(seen: Observed, end: WorldEnd) -> RepeatedFailures:
    """Return the earlier failures that, with this one, show that every restart would fail; empty if none do."""
    cause = end.cause
    is_step_known = cause.step is not None or not seen.has_stepped
    if cause.reason not in REPEATABLE or not is_step_known:
        return ()
    repeated = tuple(
        attempt
        for attempt in _list_failures(seen)
        if attempt.cause and _are_equal_failures(attempt, attempt.cause, cause)
    )
    may_be_a_node = end.is_single_node and cause.reason not in NODE_INDEPENDENT_REASONS
    is_single_node = may_be_a_node and all(attempt.cause and attempt.cause.node == cause.node for attempt in repeated)
    return repeated if len(repeated) >= (2 if is_single_node else 1) else ()


def describe_repeated_failures(location: str, cause: Cause, failures: RepeatedFailures) -> str:
    """Return the message about repeated failures. `location` is that of the last one."""
    step_text = "training before its first step" if cause.step is None else f"step {cause.step:,}"
    count_text = "twice" if len(failures) == 1 else f"{len(failures) + 1} times"
    first = failures[0].generation
    head = f"The same error stopped {step_text} {count_text}, the last time on {location}, first in attempt {first}:"
    return "\n".join(text for text in (head, f"  {cause.message}", cause.log) if text)


def _list_failures(seen: Observed) -> RepeatedFailures:
    """Return the recorded failures since a step was last saved."""
    num_consecutive = seen.consecutive_failures
    failed = tuple(
        attempt for attempt in seen.status.attempts if attempt.cause and attempt.cause.reason in FAILURE_REASONS
    )
    return failed[-num_consecutive:] if num_consecutive else ()


def _are_equal_failures(attempt: Attempt, before: Cause, cause: Cause) -> bool:
    """Return whether two worlds failed for the same reason at the same step, or both before their first step."""
    has_stepped = (attempt.last_step or 0) > (attempt.first_step or 0)
    is_step_known = before.step is not None or not has_stepped
    same = (before.reason, before.message, before.step) == (cause.reason, cause.message, cause.step)
    return is_step_known and same
