"""The process that becomes the program of `spec.program`: it waits for its world, then replaces itself by the command.

The program keeps the process id, the log and the pipe of events of this process. The agent therefore sees its exit code
and its signals directly. The kernel kills the program when the agent dies: an unsupervised program must not train.
"""

import ctypes
import os
import sys
from typing import NoReturn

from trainingjob_agent.orphans import die_with_parent
from trainingjob_agent.program_environment import fill_in, program_environment, world_values
from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE, AgentEvent, StartWorld
from trainingjob_api.protocol import Failure, FailureReason, Phase

COMMAND_PATH = "spec.program.command"
WORKING_DIRECTORY_PATH = "spec.program.workingDirectory"
FAILED = 1


def main() -> NoReturn:
    """Report readiness, wait for the world on standard input, and become the program."""
    _die_with_agent(os.getppid())
    _send(AgentEvent(ready=True))
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(FAILED)  # the agent is gone
    start = StartWorld.model_validate_json(line)
    program = start.config.spec.command_program
    assert program, "the agent starts this process for jobs with a program only"  # noqa: S101
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    if program.working_directory:
        try:
            os.chdir(program.working_directory)
        except OSError as error:
            _fail(WORKING_DIRECTORY_PATH, program.working_directory, f"the folder cannot be entered: {error.strerror}.")
    arguments = [fill_in(argument, world_values(start)) for argument in program.command or ()]
    _send(AgentEvent(phase=Phase.TRAINING, total_steps=program.steps))
    try:
        os.execvpe(arguments[0], arguments, program_environment(start, os.environ))  # noqa: S606  # no shell, on purpose
    except OSError as error:
        _fail(COMMAND_PATH, arguments[0], f"cannot be started: {error.strerror}. Is it installed in the image?")


def _fail(path: str, value: str, message: str) -> NoReturn:
    """Report a failure that a restart would repeat, and exit."""
    failure = Failure(reason=FailureReason.CONFIG, fatal=True, path=path, value=value, message=message)
    _send(AgentEvent(failure=failure))
    os._exit(FAILED)


def _send(event: AgentEvent) -> None:
    os.write(int(os.environ[EVENTS_FD_VARIABLE]), event.model_dump_json(exclude_defaults=True).encode() + b"\n")


def _die_with_agent(agent: int) -> None:
    """Let the kernel kill this process, and the program that it becomes, when the agent dies."""
    if not die_with_parent() or os.getppid() != agent:
        sys.exit(f"the agent died, or the kernel refused to bind this process to it: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
