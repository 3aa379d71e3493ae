"""Failure records: why training cannot continue, for the user to act on and for the operator to decide on.

Code that knows the cause raises `TrainingError`. All other exceptions are classified here by type and text: JAX has no
exception types for a lost peer or for exhausted memory.

The type of a runtime error depends on where it appears. A wait for a result raises JaxRuntimeError. A call of a
compiled program raises a ValueError with the same text. The start of the devices wraps it in a plain RuntimeError. A
status code at the beginning of the text identifies all of them.
"""

import re
import traceback

from jax.errors import JaxRuntimeError

from trainingjob_agent.flag_errors import ENV_PATH, find_flag_error
from trainingjob_agent.heartbeat_errors import find_lost_processes
from trainingjob_api.protocol import LOG_EXCERPT_BYTES, MAX_MESSAGE, MAX_REPORTED, Failure, FailureReason
from trainingjob_trainer.runtime.error_patterns import classify_error
from trainingjob_trainer.runtime.errors import TrainingError, shorten

STATUS = re.compile(
    r"(Unable to initialize backend '\w+': )?"
    r"(CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS): "
)
"""How the text of an error of XLA's runtime begins: with the code of its status."""


def failure_record(error: BaseException, *, step: int | None) -> Failure:
    """Return the record of a failure. `step` is the newest finished step; None: training has not begun."""
    log = "".join(traceback.format_exception(error))[-LOG_EXCERPT_BYTES:]
    if isinstance(error, TrainingError):
        return Failure(
            reason=error.reason,
            fatal=error.fatal,
            message=shorten(str(error), MAX_MESSAGE),
            path=error.path,
            value=error.value[:MAX_MESSAGE],
            is_host_known=error.is_host_known,
            newest_generation=min(error.newest_generation, MAX_REPORTED),
            is_replica_behind=error.is_replica_behind,
            step=step,
            log=log,
        )
    flag = find_flag_error(log)
    if flag is not None:
        return Failure(
            reason=FailureReason.CONFIG,
            fatal=True,
            message=flag.message,
            path=ENV_PATH,
            value=flag.variable,
            step=step,
            log=log,
        )
    reason, message = _classify(error)
    missed = find_lost_processes(str(error)) if reason is FailureReason.PEER else ()
    return Failure(reason=reason, message=shorten(message, MAX_MESSAGE), step=step, log=log, missed=missed)


def _classify(error: BaseException) -> tuple[FailureReason, str]:
    text = str(error)
    is_status = isinstance(error, (RuntimeError, ValueError)) and STATUS.match(text) is not None
    # A device that cannot be reached may also be a RuntimeError without a status.
    reason = classify_error(text) if is_status or isinstance(error, RuntimeError) else FailureReason.CRASH
    if isinstance(error, MemoryError) or reason is FailureReason.OUT_OF_MEMORY:
        return (
            FailureReason.OUT_OF_MEMORY,
            (
                f"memory ran out: {text}. Lower spec.training.maxPerDeviceBatch, set spec.memory.remat to `full`, or "
                "split the model further over fsdp or tensor."
            ),
        )
    match reason:
        case FailureReason.ACCELERATOR:
            return reason, f"a device of this host failed: {text}"
        case FailureReason.NETWORK:
            return reason, f"this host cannot reach the others: {text}"
        case FailureReason.PEER if is_status or isinstance(error, JaxRuntimeError):
            return reason, f"another host of the world was lost: {text}"
        case _:
            return FailureReason.CRASH, f"{type(error).__name__}: {text}"
