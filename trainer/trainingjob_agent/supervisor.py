"""The agent's event loop: it receives messages in one queue, applies the rules, and performs their actions.

This module decides nothing. The agent's state is lost with the agent, by design. Its children exit when their standard
input closes, and Kubernetes restarts the container. The ledger keeps the new agent out of the old world.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from trainingjob_agent.fault_injection import inject_fault
from trainingjob_agent.generation_file import GenerationFile
from trainingjob_agent.host import handle_message, initial_state, next_tick
from trainingjob_agent.host_environment import Environment
from trainingjob_agent.host_report import HostIdentity, is_urgent, make_report
from trainingjob_agent.operator_session import Reporter
from trainingjob_agent.orphans import reap_orphans
from trainingjob_agent.ports import ReservedPort
from trainingjob_agent.program_cache import ProgramCache
from trainingjob_agent.program_process import LAUNCHER, ProgramChild
from trainingjob_agent.redaction import Redactor, find_secrets
from trainingjob_agent.rendezvous import Rendezvous
from trainingjob_agent.state import (
    Action,
    AnswerReceived,
    ChildExited,
    DiagnoseChild,
    Finish,
    Host,
    InjectFault,
    InspectChild,
    KillChild,
    Message,
    RenewHotStandbyPort,
    RequestLeave,
    SendLiveSlices,
    SpawnHotStandby,
    SpawnStandby,
    StartChild,
    StartHotStandby,
    Stop,
    Terminated,
    TimerFired,
)
from trainingjob_agent.store_requests import write_text
from trainingjob_agent.trainer_process import Child
from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.inspection import STACKS, InspectionKind, trace_name
from trainingjob_api.protocol import Answer, Failure, FailureReason, HostReport
from trainingjob_api.world import World

LOG = logging.getLogger(__name__)
# `-P`: no file in the working directory, which is the user's, may replace a module that the trainer imports.
TRAINER = (sys.executable, "-P", "-m", "trainingjob_trainer.main")
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FINISHED_EXIT_CODE = 0
TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
"""Not 0: that would mark this host's index as completed."""


class Supervisor:
    """The agent of one host. `command` starts a trainer process; unset: the one that the spec needs."""

    def __init__(self, environment: Environment, command: Sequence[str] = ()) -> None:
        config = environment.config
        runs_program = config.spec.command_program is not None
        self._environment = environment
        self._command = command or (LAUNCHER if runs_program else TRAINER)
        self._child_type = ProgramChild if runs_program else Child
        self._checkpoints = config.spec.checkpoint.uri
        self._host = Host(
            job_uid=config.job.uid,
            pod_uid=environment.pod_uid,
            memory=config.spec.runtime.resources.memory,
            finish_after=environment.finish_after_seconds,
            grace=environment.grace_seconds,
            drills_allowed=config.spec.elastic.fault_injection == "allowed",
            hot_standbys_allowed=config.spec.elastic.hot_standby,
            env=config.spec.runtime.env,
            runs_program=runs_program,
        )
        self._identity = HostIdentity(
            pod=environment.pod,
            slice=environment.slice,
            host=environment.host,
            address=environment.address,
            instance=secrets.token_hex(8),
        )
        self._redactor = Redactor(find_secrets(config.spec, os.environ))
        self._generation_file = GenerationFile(environment.pod_uid)
        self._program_secret = ""
        self._program_cache = ProgramCache()
        self._port = ReservedPort(environment.address)
        self._hot_standby_port = ReservedPort(environment.address)
        self._children: dict[int, Child] = {}
        self._tasks = asyncio.TaskGroup()
        self._loop = asyncio.get_running_loop()
        self._state = initial_state(self._read_generation(), self._loop.time())
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._messages.put_nowait(TimerFired())

    async def run(self) -> int:
        """Run until the job is over or the pod is deleted; return the exit code."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in END_SIGNALS:
            self._loop.add_signal_handler(number, self._messages.put_nowait, Terminated())
        environment = self._environment
        try:
            async with Rendezvous(environment.rendezvous, environment.token, environment.ca) as rendezvous:
                reporter = Reporter(rendezvous.post, self._describe, self._on_answer)
                async with self._tasks:
                    reporting = self._tasks.create_task(reporter.run())
                    code = await self._run_loop(reporter)
                    reporting.cancel()
                    self._end_children()
                if code == TERMINATED_EXIT_CODE:
                    await reporter.send_last_report()
        finally:
            for child in self._children.values():  # children whose `forward_output` was cancelled before it began
                child.close()
            self._program_cache.close()
            self._port.release()
            self._hot_standby_port.release()
            for number in (signal.SIGCHLD, *END_SIGNALS):
                self._loop.remove_signal_handler(number)
        if code == FINISHED_EXIT_CODE:  # a stopped container may start again in the same pod
            self._delete_generation_file()
        return code

    async def _run_loop(self, reporter: Reporter) -> int:
        reported = None
        while True:
            message = await self._next_message()
            step = handle_message(self._host, self._state, message, self._loop.time())
            self._state = step.state
            for action in step.actions:
                code = self._perform(action, reporter)
                if code is not None:
                    return code
            report = self._describe()
            if is_urgent(report, reported):
                reporter.report_now()
            reported = report

    async def _next_message(self) -> Message:
        """Return the next message, or `TimerFired` at the next timer."""
        try:
            async with asyncio.timeout_at(next_tick(self._host, self._state)):
                message = await self._messages.get()
        except TimeoutError:
            return TimerFired()
        if isinstance(message, ChildExited):
            LOG.info(
                "a training process ended child=%d code=%s signal=%s",
                message.child,
                message.code,
                message.signal or None,
            )
            self._children.pop(message.child, None)
            self._reap()
        return message

    def _perform(self, action: Action, reporter: Reporter) -> int | None:  # None: continue; else the exit code
        match action:
            case SpawnStandby(child) | SpawnHotStandby(child):
                self._spawn(child)
            case StartChild(child, world, process):
                self._start(child, self._make_start(world, process))
            case StartHotStandby() | RenewHotStandbyPort():
                self._use_hot_standby_port(action)
            case RequestLeave() | SendLiveSlices():
                self._send(action)
            case DiagnoseChild() | InspectChild():
                self._examine(action)
            case InjectFault(child, drill):
                LOG.warning("a drill kind=%s id=%s child=%d", drill.kind, drill.id, child)
                self._tasks.create_task(
                    inject_fault(drill, self._children[child], reporter, self._checkpoints, self._messages.put_nowait)
                )
            case KillChild(child):
                self._kill(child)
            case Finish(termination):
                LOG.info("the job is over phase=%s outcome=%r", termination.phase, termination.outcome)
                write_termination_message(self._environment.termination_log, termination.model_dump_json(by_alias=True))
                return FINISHED_EXIT_CODE
            case Stop():
                return TERMINATED_EXIT_CODE
            case _:
                assert_never(action)
        return None

    def _kill(self, number: int) -> None:
        LOG.info("ending a training process child=%d", number)
        if child := self._children.get(number):  # none: its start has just failed
            child.kill()

    def _send(self, action: RequestLeave | SendLiveSlices) -> None:
        child = self._children[action.child]
        if isinstance(action, SendLiveSlices):
            child.send_live_slices(action.slices)
            return
        request = "leave" if action.moves else "save and leave"
        LOG.info("asking a training process to %s child=%d", request, action.child)
        child.request_leave(moves=action.moves)

    def _examine(self, action: DiagnoseChild | InspectChild) -> None:
        child = self._children[action.child]
        if isinstance(action, DiagnoseChild):
            LOG.info("collecting diagnostics of a training process child=%d", action.child)
            self._tasks.create_task(self._collect_diagnostics(action.child, child))
            return
        inspection = action.inspection
        LOG.info("an inspection kind=%s id=%s child=%d", inspection.kind, inspection.id, action.child)
        if inspection.kind is InspectionKind.TRACE:
            child.trace(trace_name(inspection.id), inspection.steps)
        else:
            self._tasks.create_task(log_stacks(inspection.id, child))

    def _spawn(self, number: int) -> None:
        try:
            child = self._child_type(number, self._command, self._messages.put_nowait, sys.stdout.buffer)
        except OSError as error:
            failure = Failure(reason=FailureReason.CRASH, message=f"no training process can be started: {error}")
            self._messages.put_nowait(ChildExited(number, failure=failure))
            return
        self._children[number] = child
        self._tasks.create_task(child.forward_output())

    def _make_start(self, world: World, process: int, *, waits: bool = False) -> StartWorld:
        return StartWorld(
            config=self._environment.config.for_world(world),
            world=world,
            process=process,
            compile_cache=self._environment.compile_cache,
            program_secret=self._program_secret,
            snapshots=self._environment.snapshots,
            expected=self._environment.expected,
            proven=self._state.devices_verified,
            waits=waits,
        )

    def _start(self, number: int, start: StartWorld) -> None:
        world = start.world
        LOG.info(
            "joining a world generation=%d process=%d of=%d coordinator=%s child=%d",
            world.generation,
            start.process,
            len(world.members),
            world.coordinator,
            number,
        )
        try:
            self._generation_file.write(world.generation)
        except OSError as error:
            LOG.warning("a restart of this container will not know its world error=%s", error)
        self._port.release()
        self._port = ReservedPort(self._environment.address)
        self._children[number].start(start)
        if self._host.runs_program:
            self._program_cache.begin_world(start)

    def _use_hot_standby_port(self, action: StartHotStandby | RenewHotStandbyPort) -> None:
        self._hot_standby_port.release()
        if isinstance(action, RenewHotStandbyPort):
            self._hot_standby_port = ReservedPort(self._environment.address)
            return
        world, number = action.world, action.child
        LOG.info("joining a hot standby world process=%d of=%d child=%d", action.process, len(world.members), number)
        self._children[number].start(self._make_start(world, action.process, waits=True))

    async def _collect_diagnostics(self, number: int, child: Child) -> None:
        generation = self._state.started
        diagnostics = await child.collect_diagnostics()
        if diagnostics is None:
            return
        self._messages.put_nowait(diagnostics)
        identity = self._identity
        name = f"stacks/{generation}-{identity.slice}-{identity.host}.txt"
        child_name = f"host {identity.host} of slice {identity.slice}, child {number}"
        text = f"{child_name}: {diagnostics.state}, {diagnostics.cores:.2f} cores\n\n"
        # A daemon thread that is never joined: the storage itself may hang.
        arguments = (self._checkpoints, name, text + diagnostics.stacks + "\n")
        threading.Thread(target=write_stacks, args=arguments, daemon=True).start()

    def _end_children(self) -> None:
        for child in self._children.values():
            child.kill()

    def _describe(self) -> HostReport:
        child = self._children.get(self._state.live.child) if self._state.live else None
        standby = self._children.get(self._state.standby.child) if self._state.standby else None
        process = child or standby
        report = make_report(
            self._host,
            self._identity,
            self._state,
            self._port.number,
            self._hot_standby_port.number,
            moved_mebibytes=child.io_mebibytes if child else None,
            vitals=process.vitals if process else None,
        )
        return self._redactor.redact_report(report)

    def _on_answer(self, answer: Answer) -> None:
        self._program_secret = answer.program_secret or self._program_secret  # an answer without a world has no secret
        self._messages.put_nowait(AnswerReceived(answer))

    def _reap(self) -> None:
        reap_orphans({child.pid for child in self._children.values()})

    def _read_generation(self) -> int:
        try:
            return self._generation_file.read()
        except (OSError, ValueError) as error:
            LOG.warning("the worlds that this pod was in are not known error=%s", error)
            return 0

    def _delete_generation_file(self) -> None:
        with contextlib.suppress(OSError):
            self._generation_file.delete()


async def log_stacks(number: str, child: Child) -> None:
    """Write the thread stacks of a child into the log, between two lines with the id of the inspection."""
    found = await child.collect_diagnostics()
    if found is not None:
        text = f"{found.state}, {found.cores:.2f} cores\n\n{found.stacks or 'it dumped no stacks.'}"
        LOG.info("%s", STACKS.format(id=number, text=text))


def write_stacks(root: str, name: str, text: str) -> None:
    """Write a child's thread stacks beside the checkpoints, so that those of all hosts are in one place."""
    if problem := write_text(root, name, text):
        LOG.warning("the stacks cannot be written root=%s name=%s error=%s", root, name, problem)


def write_termination_message(path: Path, message: str) -> None:
    """Write a container's termination message, for Kubernetes or a local runner."""
    try:
        path.write_text(message)
    except OSError as error:
        LOG.warning("the termination message cannot be written path=%s error=%s", path, error)
