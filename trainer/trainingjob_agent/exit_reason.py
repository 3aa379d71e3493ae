"""Exit reasons of children: from their own failure report, else from the kernel and the log.

The operator chooses between restart and failure by the reason, so a guess must stay close to the facts. A signal that a
program raises itself is a crash. A signal from outside is a kill.
"""

import signal
from collections.abc import Iterable

from trainingjob_agent.flag_errors import ENV_PATH, find_flag_error, locate_variable
from trainingjob_agent.heartbeat_errors import find_lost_processes
from trainingjob_agent.log_tail import excerpt
from trainingjob_agent.state import ActiveChild, ChildExited
from trainingjob_api.protocol import Failure, FailureReason, Phase
from trainingjob_api.spec.runtime import EnvVar

CRASH_SIGNALS = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"})
LEAVE_CODES, LEAVE_SIGNALS = (0, 128 + signal.SIGTERM), ("SIGTERM",)
"""Exit codes and signals of a program that leaves because of SIGTERM."""
PEER_DIED = (
    "the JAX distributed service detected fatal errors",  # its client, when the service reports a lost process
    "terminate called after throwing an instance of 'gloo::",  # gloo's own thread, on connection errors
)
"""Log lines of libraries that abort because another process of the world is gone."""


def explain_program_exit(active: ActiveChild, child_exit: ChildExited) -> Phase | None:
    """Return the final phase of a program that left its world as requested, or has nothing more to do.

    None: it failed, or was killed.
    """
    if active.killed or child_exit.failure is not None:
        return None
    if active.leave_requested and (child_exit.code in LEAVE_CODES or child_exit.signal in LEAVE_SIGNALS):
        return Phase.LEFT
    return Phase.DONE if child_exit.code == 0 else None


def explain_exit(
    child_exit: ChildExited, *, step: int | None, memory: str, env: Iterable[EnvVar] = (), is_program: bool = False
) -> Failure:
    """Return the failure of a child that ended without a request.

    `step` is the newest step that it finished. `memory` is the container's memory limit as the spec writes it. `env`
    are the variables that the spec sets. `is_program`: the child ran `program.command`.
    """
    failure = child_exit.failure
    if failure is not None:
        is_variable = failure.path == ENV_PATH
        path, value = locate_variable(env, failure.value) if is_variable else (failure.path, failure.value)
        return failure.model_copy(
            update={
                "path": path,
                "value": value,
                "step": step if failure.step is None else failure.step,
                "exit_code": child_exit.code,
                "signal": child_exit.signal,
                "log": failure.log or excerpt(child_exit.log),
            }
        )
    error = find_flag_error(child_exit.log) if child_exit.code or child_exit.signal in CRASH_SIGNALS else None
    if error is not None:
        path, value = locate_variable(env, error.variable)
        return Failure(
            reason=FailureReason.CONFIG,
            fatal=True,
            message=error.message,
            path=path,
            value=value,
            step=step,
            exit_code=child_exit.code,
            signal=child_exit.signal,
            log=excerpt(child_exit.log),
        )
    reason, message = _classify_exit(child_exit, memory, is_program=is_program)
    out_of_memory = reason is FailureReason.OUT_OF_MEMORY
    return Failure(
        reason=reason,
        message=message,
        path="spec.runtime.resources.memory" if out_of_memory else "",
        value=memory if out_of_memory else "",
        step=step,
        exit_code=child_exit.code,
        signal=child_exit.signal,
        log=excerpt(child_exit.log),
        missed=find_lost_processes(child_exit.log) if reason is FailureReason.PEER else (),
    )


def _classify_exit(child_exit: ChildExited, memory: str, *, is_program: bool) -> tuple[FailureReason, str]:
    child = "program" if is_program else "trainer"
    if child_exit.signal == "SIGKILL" and child_exit.out_of_memory:
        message = (
            f"the {child} used up the container's memory ({memory} and its memory volumes); the kernel killed it. "
        )
        advice = (
            f"Raise spec.runtime.resources.memory{'' if is_program else ' or lower spec.training.maxPerDeviceBatch'}."
        )
        return FailureReason.OUT_OF_MEMORY, message + advice
    if child_exit.signal == "SIGABRT" and any(line in child_exit.log for line in PEER_DIED):
        return FailureReason.PEER, f"JAX ended the {child} because another host of the world was lost."
    if child_exit.signal in CRASH_SIGNALS:
        return FailureReason.CRASH, f"the {child} crashed with {child_exit.signal}; the end of its log shows where."
    if child_exit.signal:
        return FailureReason.KILLED, f"the {child} was ended by {child_exit.signal}, which this agent did not send."
    if is_program:
        return FailureReason.CRASH, f"the program exited with code {child_exit.code}; see the end of its log."
    message = f"the trainer exited with code {child_exit.code} before it was done and reported no error; "
    return FailureReason.CRASH, message + "see the end of its log."
