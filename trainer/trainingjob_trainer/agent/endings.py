"""Why a child ended: from its own words, else from what the kernel and its log say.

The operator decides by the reason between starting again and giving up, so a guess must err to the side of the facts:
a signal that a program raises against itself is a crash, one that comes from outside is a kill.
"""

from collections.abc import Iterable

from trainingjob_api.protocol import Failure, FailureReason
from trainingjob_api.running import EnvVar
from trainingjob_trainer.agent.state import Ended
from trainingjob_trainer.agent.tail import excerpt
from trainingjob_trainer.flag_errors import ENV, find_flag_error, find_variable
from trainingjob_trainer.missed import find_missed

OWN_FAULTS = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"})
PEER_DIED = (
    "the JAX distributed service detected fatal errors",  # its client, when the service says that another is gone
    "terminate called after throwing an instance of 'gloo::",  # gloo's own thread, to which errors of connections come
)
"""What libraries write before they abort, when another process of the world is gone."""


def explain_end(ended: Ended, *, step: int | None, memory: str, env: Iterable[EnvVar] = ()) -> Failure:
    """Return why a child ended that nobody asked to end.

    `step` is the newest step that it finished, `memory` the container's memory limit as the spec writes it, and `env`
    the variables that the spec sets.
    """
    if ended.failure is not None:
        named = ended.failure.path == ENV
        path, value = find_variable(env, ended.failure.value) if named else (ended.failure.path, ended.failure.value)
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
    error = find_flag_error(ended.log) if ended.code or ended.signal in OWN_FAULTS else None
    if error is not None:
        path, value = find_variable(env, error.variable)
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
    reason, message = _guess(ended, memory)
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
        missed=find_missed(ended.log) if reason is FailureReason.PEER else (),
    )


def _guess(ended: Ended, memory: str) -> tuple[FailureReason, str]:
    if ended.signal == "SIGKILL" and ended.out_of_memory:
        message = (
            f"the trainer used up the container's memory ({memory} and its memory volumes); the kernel killed it. "
        )
        advice = "Raise spec.runtime.resources.memory or lower spec.training.maxPerDeviceBatch."
        return FailureReason.OUT_OF_MEMORY, message + advice
    if ended.signal == "SIGABRT" and any(words in ended.log for words in PEER_DIED):
        return FailureReason.PEER, "JAX ended the trainer because another host of the world was gone."
    if ended.signal in OWN_FAULTS:
        return FailureReason.CRASH, f"the trainer crashed with {ended.signal}; the last lines of its log say where."
    if ended.signal:
        return FailureReason.KILLED, f"the trainer was ended by {ended.signal}, which this agent did not send."
    return (
        FailureReason.CRASH,
        f"the trainer exited with code {ended.code} before it was done and gave no reason; see the end of its log.",
    )
