"""The trainer process: a standby that has imported everything and traced the model, then one world, then exit.

Before its world, the process may wait in a hot standby world, connected to the others and with its programs loaded.

The process uses no device before it knows its world: on most platforms one process owns the devices. It always exits
with `os._exit`: an exception that reaches the interpreter's exit would shut the JAX world down. That would abort every
process of the world half a minute later, without naming the cause.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported stays: scanning it takes a sixth of the time until a standby is ready

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import BinaryIO, NoReturn

from trainingjob_agent.heartbeat_errors import expects_heartbeat_report
from trainingjob_agent.orphans import die_with_parent
from trainingjob_agent.trainer_protocol import CONFIG_VARIABLE, STANDBY_TITLE, AgentEvent, Command, StartWorld
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import RunConfig
from trainingjob_trainer.loop import run
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.runtime.agent_events import EXIT_ORPHANED, AgentEvents
from trainingjob_trainer.runtime.compile_cache_key import hash_modules
from trainingjob_trainer.runtime.entrypoint_module import load_entrypoint
from trainingjob_trainer.runtime.failure_records import failure_record
from trainingjob_trainer.runtime.preflight import expected_digests
from trainingjob_trainer.runtime.process_output import exit_now

LOG = logging.getLogger(__name__)
FAILED = 1
PEER_ERROR_WAIT_SECONDS = 10
"""Seconds that JAX gets to name the lost process after an error about a late peer. The world fails in any case."""
PROCESS_TITLE_FILE = Path("/proc/self/comm")
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> NoReturn:
    """Wait for a world, train in it, and exit."""
    die_with_parent()
    # `force` replaces the handler that an imported library has installed.
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT, force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("jax").setLevel(logging.WARNING)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # dumps the stacks of a hung process
    events = AgentEvents.from_environment(os.environ)
    control_signals = ControlSignals()

    def request_exit(number: int, frame: FrameType | None) -> None:
        control_signals.request_exit()

    signal.signal(signal.SIGTERM, request_exit)
    _set_process_title(STANDBY_TITLE)
    warm_up(os.environ)
    gc.freeze()  # imported objects stay: the collector need not scan them while a world starts
    gc.enable()
    events.send(AgentEvent(ready=True))
    line = sys.stdin.buffer.readline()
    if not line:
        exit_now(0)
    try:
        start = StartWorld.model_validate_json(line)
        _set_process_title(start.title)
        worlds: SimpleQueue[StartWorld] = SimpleQueue()
        threading.Thread(
            target=_command_loop,
            args=(sys.stdin.buffer, control_signals, worlds if start.waits else None),
            name="commands",
            daemon=True,
        ).start()

        def receive_start() -> StartWorld:
            world = worlds.get()
            _set_process_title(world.title)
            return world

        run(start, events, control_signals, receive_start)
    except BaseException as error:  # report any failure to the agent, then exit
        LOG.exception("training failed step=%s", events.step)
        report_failure_and_exit(error, events)
    exit_now(0)


def report_failure_and_exit(error: BaseException, events: AgentEvents) -> NoReturn:
    """Report to the agent why training failed, and exit.

    If JAX is about to name a lost process, wait for that first: its message is more precise.
    """
    if expects_heartbeat_report(str(error)):
        time.sleep(PEER_ERROR_WAIT_SECONDS)  # JAX then ends this process, and the agent reads the name from its log
    events.send(AgentEvent(failure=failure_record(error, step=events.step)))
    exit_now(FAILED)


def warm_up(environment: Mapping[str, str]) -> None:
    """Warm up without a device: compute the preflight digests, trace the pod's model, and hash the sources."""
    expected_digests()
    _trace_model(environment)
    hash_modules()  # last: the folder of an entrypoint is on the search path


def _trace_model(environment: Mapping[str, str]) -> None:
    path = environment.get(CONFIG_VARIABLE)
    if not path:
        return
    try:
        spec = RunConfig.model_validate_json(Path(path).read_bytes()).spec
        if spec.program:
            load_entrypoint(spec.program)
        split_model_of(spec)
        if teacher := describe_teacher(spec):
            split_model_of(teacher)
    except Exception:  # the error recurs in the world, which reports it
        LOG.exception("cannot trace the model in advance")


def _set_process_title(title: str) -> None:
    """Set the process title, which `ps` and `top` show."""
    with suppress(OSError):
        PROCESS_TITLE_FILE.write_text(title)


def _command_loop(
    commands: BinaryIO, control_signals: ControlSignals, worlds: "SimpleQueue[StartWorld] | None"
) -> None:
    """Execute the agent's commands; a hot standby first receives the `StartWorld` of its world.

    Exit when the agent is gone: an unsupervised trainer must neither train nor wait.
    """
    if worlds is not None and (line := commands.readline()):
        worlds.put(StartWorld.model_validate_json(line))
    for line in commands:
        command = Command.model_validate_json(line)
        if command.leave:
            control_signals.request_exit()
        if command.move:
            control_signals.request_rescale()
        if command.poison:
            control_signals.inject_nan()
        if command.trace:
            control_signals.request_trace(command.trace)
        if command.live_slices is not None:
            control_signals.set_live_slices(command.live_slices)
    exit_now(EXIT_ORPHANED)


if __name__ == "__main__":
    main()
