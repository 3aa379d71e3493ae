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


def explain_program_exit(active: ActiveChild, ended: ChildExited) -> Phase | None:  # None: it failed, or was killed
    """Return the final phase of a program that left its world as requested, or has nothing more to do."""
    if active.killed or ended.failure is not None:
        return None
    if active.leave_requested and (ended.code in LEAVE_CODES or ended.signal in LEAVE_SIGNALS):
        return Phase.LEFT
    return Phase.DONE if ended.code == 0 else None


def explain_exit(
    ended: ChildExited, *, step: int | None, memory: str, env: Iterable[EnvVar] = (), is_program: bool = False
) -> Failure:
    """Return the failure of a child that ended without a request.

    `step` is the newest step that it finished. `memory` is the container's memory limit as the spec writes it. `env`
    are the variables that the spec sets. `is_program`: the child ran `program.command`.
    """
    if ended.failure is not None:
        named = ended.failure.path == ENV_PATH
        path, value = locate_variable(env, ended.failure.value) if named else (ended.failure.path, ended.failure.value)
        return ended.failure.model_copy(
            update={
                "path": path,
                "value": value,
                "step": step if ended.failure.step is None else ended.failure.step,
                "exit_code": ended.code,
                "signal": ended.signal,
                "log": ended.failure.log or excerpt(ended.log),
            }
        )
    error = find_flag_error(ended.log) if ended.code or ended.signal in CRASH_SIGNALS else None
    if error is not None:
        path, value = locate_variable(env, error.variable)
        return Failure(
            reason=FailureReason.CONFIG,
            fatal=True,
            message=error.message,
            path=path,
            value=value,
            step=step,
            exit_code=ended.code,
            signal=ended.signal,
            log=excerpt(ended.log),
        )
    reason, message = _classify_exit(ended, memory, is_program=is_program)
    out_of_memory = reason is FailureReason.OUT_OF_MEMORY
    return Failure(
        reason=reason,
        message=message,
        path="spec.runtime.resources.memory" if out_of_memory else "",
        value=memory if out_of_memory else "",
        step=step,
        exit_code=ended.code,
        signal=ended.signal,
        log=excerpt(ended.log),
        missed=find_lost_processes(ended.log) if reason is FailureReason.PEER else (),
    )


def _classify_exit(ended: ChildExited, memory: str, *, is_program: bool) -> tuple[FailureReason, str]:
    child = "program" if is_program else "trainer"
    if ended.signal == "SIGKILL" and ended.out_of_memory:
        message = (
            f"the {child} used up the container's memory ({memory} and its memory volumes); the kernel killed it. "
        )
        advice = (
            f"Raise spec.runtime.resources.memory{'' if is_program else ' or lower spec.training.maxPerDeviceBatch'}."
        )
        return FailureReason.OUT_OF_MEMORY, message + advice
    if ended.signal == "SIGABRT" and any(words in ended.log for words in PEER_DIED):
        return FailureReason.PEER, f"JAX ended the {child} because another host of the world was lost."
    if ended.signal in CRASH_SIGNALS:
        return FailureReason.CRASH, f"the {child} crashed with {ended.signal}; the end of its log shows where."
    if ended.signal:
        return FailureReason.KILLED, f"the {child} was ended by {ended.signal}, which this agent did not send."
    if is_program:
        return FailureReason.CRASH, f"the program exited with code {ended.code}; see the end of its log."
    return (
        FailureReason.CRASH,
        f"the trainer exited with code {ended.code} before it was done and reported no error; see the end of its log.",
    )
