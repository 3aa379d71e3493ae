"""A whole agent: real processes that play the trainer, a real server that plays the operator."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainingjob_api.live import live_fields
from trainingjob_api.protocol import Directive, FailureReason, HostReport, Phase, ProcessState, Termination
from trainingjob_api.world import Member, RunConfig, World


def world(generation: int, *pods: str) -> World:
    members = tuple(
        Member(process=process, slice=process, host=0, pod=uid, pod_uid=uid, address="127.0.0.1")
        for process, uid in enumerate(pods or ("uid-0",))
    )
    return World(generation=generation, job_uid="job-1", coordinator="127.0.0.1:1", members=members)


def last_words(variables: dict[str, str]) -> Termination:
    return Termination.model_validate_json(Path(variables["TRAININGJOB_TERMINATION_LOG"]).read_text())


def wrote_last_words(variables: dict[str, str]) -> bool:
    return Path(variables["TRAININGJOB_TERMINATION_LOG"]).exists()


def is_broken(report: HostReport) -> bool:
    return report.broken is not None


def has_standby(report: HostReport) -> bool:
    return report.standby


def is_training(generation: int) -> Callable[[HostReport], bool]:
    return lambda report: report.generation == generation and report.phase is Phase.TRAINING


def trainers() -> list[int]:
    """Return the processes of this test's trainers."""
    return [pid for pid in children_of(os.getpid()) if b"fake_trainer.py" in read_proc(pid, "cmdline")]


def children_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for tasks in listed for pid in tasks.read_text().split()]


def read_proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone
        return b""


async def exit_code(task: asyncio.Task[int]) -> int:
    return await asyncio.wait_for(task, 20)


async def test_a_host_lives_from_its_first_report_to_the_end_of_its_job(launch, operator, variables, tmp_path) -> None:
    task = launch(g1="finish")
    first = await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    done = await operator.hear(lambda report: report.phase is Phase.DONE)
    await operator.say(Directive.FINISH, outcome="Succeeded")

    assert await exit_code(task) == 0
    assert (first.pod, first.pod_uid, first.slice, first.host, first.generation) == ("pod-0", "uid-0", 3, 0, 0)
    assert done.generation == 1
    assert done.committed == 10
    assert done.port != first.port
    assert last_words(variables) == Termination(
        job_uid="job-1", generation=1, phase=Phase.DONE, committed=10, outcome="Succeeded"
    )
    assert set(operator.tokens) == {"Bearer secret"}
    assert not list(tmp_path.glob("trainingjob-agent-*"))


async def test_a_standby_takes_over_in_a_higher_generation(launch, operator) -> None:
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(lambda report: is_training(1)(report) and report.standby)
    await operator.say(Directive.TRAIN, world(2))
    report = await operator.hear(is_training(2))

    assert report.failure is None


async def test_world_contains_edits_since_the_start_of_the_pod(launch, operator, run_config) -> None:
    launch(g1="count")
    await operator.hear(has_standby)
    edited = live_fields(run_config.spec).model_copy(update={"steps": 77})
    await operator.say(Directive.TRAIN, world(1).model_copy(update={"live": edited}))

    report = await operator.hear(lambda report: report.phase is Phase.FAILED)

    assert report.failure is not None
    assert "asked for 77 steps" in report.failure.log


async def test_a_replica_gets_the_live_slices(launch, operator) -> None:
    launch(g1="replica")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1), live_slices=(0, 3))

    report = await operator.hear(lambda report: report.phase is Phase.FAILED)

    assert report.failure is not None
    assert "the slices [0, 3] are live" in report.failure.log


async def test_a_crash_is_reported_with_its_traceback_and_the_next_world_is_joined(launch, operator) -> None:
    launch(g1="crash")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    failed = await operator.hear(lambda report: report.phase is Phase.FAILED)
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(2))
    await operator.hear(is_training(2))

    assert failed.failure is not None
    assert failed.failure.reason is FailureReason.CRASH
    assert "RuntimeError: the matrix is singular" in failed.failure.log


@pytest.mark.usefixtures("login")
async def test_a_secret_that_a_trainer_logs_as_it_dies_is_not_reported(launch, operator) -> None:
    launch(g1="leak")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    failed = await operator.hear(lambda report: report.phase is Phase.FAILED)

    assert failed.failure is not None
    assert "login failed with [redacted]" in failed.failure.log


async def test_killed_trainer_is_reported(launch, operator) -> None:
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    for pid in trainers():
        os.kill(pid, signal.SIGKILL)
    report = await operator.hear(lambda report: report.phase is Phase.FAILED)

    assert report.failure is not None
    assert (report.failure.reason, report.failure.signal) == (FailureReason.KILLED, "SIGKILL")


def has_diagnostics(report: HostReport) -> bool:
    return report.evidence is not None


@pytest.mark.thorough
async def test_diagnostics_of_a_trainer_without_progress_are_reported(
    launch, operator, variables, run_config, tmp_path
) -> None:
    write_config(variables, run_config, tmp_path / "run")
    launch()
    before = await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    training = await operator.hear(is_training(1))
    await operator.say(Directive.TRAIN, world(1), examine=True)
    report = await operator.hear(has_diagnostics)
    await operator.say(Directive.TRAIN, world(1))
    after = await operator.hear(lambda report: report.evidence is None)

    assert report.evidence is not None
    assert (report.evidence.state, report.evidence.entered, report.evidence.newest) == (
        ProcessState.SLEEPING,
        1,
        "step 1",
    )
    assert report.evidence.stack.startswith("Current thread")
    assert is_training(1)(after)
    assert before.moved_mebibytes is None
    assert training.moved_mebibytes is not None
    written = await read_when_written(tmp_path / "run/stacks/1-3-0.txt")
    assert written.startswith("host 0 of slice 3, child 1: sleeping, 0.0")
    assert report.evidence.stack in written


def write_config(variables: dict[str, str], config: RunConfig, uri: Path) -> None:
    """Move the job's checkpoints to another folder."""
    checkpoint = config.spec.checkpoint.model_copy(update={"uri": str(uri)})
    changed = config.model_copy(update={"spec": config.spec.model_copy(update={"checkpoint": checkpoint})})
    Path(variables["TRAININGJOB_CONFIG"]).write_text(changed.model_dump_json(by_alias=True))


async def read_when_written(path: Path) -> str:
    async with asyncio.timeout(20):
        while not (written := read_file(path)).endswith("\n"):  # noqa: ASYNC110  # a thread of the agent's writes it
            await asyncio.sleep(0.01)
    return written


def read_file(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.thorough
async def test_stopped_trainer_is_reported_and_ended_for_the_next_world(
    launch, operator, variables, run_config, caplog
) -> None:
    write_config(variables, run_config, Path("/proc/no"))
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(lambda report: is_training(1)(report) and report.standby)
    stopped = min(trainers())
    os.kill(stopped, signal.SIGSTOP)
    await operator.say(Directive.TRAIN, world(1), examine=True)
    report = await operator.hear(has_diagnostics)
    await operator.say(Directive.TRAIN, world(2))
    await operator.hear(is_training(2))

    assert report.evidence is not None
    assert (report.evidence.state, report.evidence.cores, report.evidence.stack) == (ProcessState.STOPPED, 0.0, "")
    assert stopped not in trainers()
    expected = "the stacks cannot be written root=/proc/no name=stacks/1-3-0.txt"
    async with asyncio.timeout(20):
        while expected not in caplog.text:  # noqa: ASYNC110  # a thread of the agent's writes it
            await asyncio.sleep(0.01)


async def test_leave_saves_and_leaves(launch, operator) -> None:
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    await operator.say(Directive.LEAVE, world(1))
    report = await operator.hear(lambda report: report.phase is Phase.LEFT)

    assert (report.generation, report.committed, report.failure) == (1, 5, None)


async def test_a_world_without_this_host_ends_its_trainer(launch, operator) -> None:
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(lambda report: is_training(1)(report) and report.standby)
    await operator.say(Directive.TRAIN, world(2, "somebody-else"))
    report = await operator.hear(lambda report: report.phase is Phase.IDLE)

    assert (report.generation, report.standby, report.failure) == (1, True, None)


async def train_and_report_often(launch, operator, monkeypatch):
    """Train in a world; return the trainers."""
    monkeypatch.setattr("trainingjob_agent.operator_session.FIRST_RETRY_SECONDS", 0.01)
    operator.hold_seconds = operator.report_again_seconds = 0.1
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    return trainers()


async def be_refused(operator) -> None:
    """Wait until some reports of the agent were rejected, and clear the received reports."""
    seen = len(operator.tokens)
    await operator.hear(lambda _: len(operator.tokens) >= seen + 3)
    operator.reports.clear()


@pytest.mark.thorough
async def test_trainer_keeps_running_during_an_operator_outage(launch, operator, monkeypatch) -> None:
    before = await train_and_report_often(launch, operator, monkeypatch)
    operator.refuses_with = 503
    await be_refused(operator)
    operator.refuses_with = 0
    await operator.hear(is_training(1))

    assert set(before) <= set(trainers())


def renew(token: Path) -> None:
    token.write_text("renewed\n")


@pytest.mark.thorough
async def test_agent_with_an_expired_token_keeps_its_trainer_and_reads_the_next_token(
    launch, operator, variables, monkeypatch
) -> None:
    before = await train_and_report_often(launch, operator, monkeypatch)
    operator.takes = "Bearer renewed"
    await be_refused(operator)
    renew(Path(variables["TRAININGJOB_TOKEN"]))
    await operator.hear(is_training(1))

    assert set(before) <= set(trainers())


async def test_done_and_no_operator_ends_well(launch, operator, variables) -> None:
    variables["TRAININGJOB_FINISH_AFTER_SECONDS"] = "0"
    task = launch(g1="finish")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))

    assert await exit_code(task) == 0
    assert last_words(variables) == Termination(job_uid="job-1", generation=1, phase=Phase.DONE, committed=10)


@pytest.mark.thorough
async def test_deleted_pod_saves_reports_and_does_not_complete_its_index(launch, operator, variables) -> None:
    task = launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    os.kill(os.getpid(), signal.SIGTERM)

    assert await exit_code(task) == 143
    assert (operator.reports[-1].phase, operator.reports[-1].committed) == (Phase.LEFT, 5)
    assert not operator.reports[-1].standby
    assert not wrote_last_words(variables)
    assert trainers() == []


@pytest.mark.thorough
async def test_deleted_pod_with_an_unresponsive_trainer_ends_in_time(launch, operator, variables) -> None:
    variables["TRAININGJOB_GRACE_SECONDS"] = "0.2"
    task = launch(g1="deaf")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    os.kill(os.getpid(), signal.SIGTERM)

    assert await exit_code(task) == 143
    assert trainers() == []


async def test_a_restarted_agent_does_not_enter_the_world_of_the_one_before(launch, operator) -> None:
    first = launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    before = await operator.hear(is_training(1))
    first.cancel()
    await asyncio.wait({first})
    launch()
    report = await operator.hear(lambda report: report.instance != before.instance and report.standby)
    assert (report.generation, report.phase) == (1, Phase.FAILED)

    await operator.say(Directive.TRAIN, world(2))
    await operator.hear(is_training(2))


@pytest.mark.thorough
async def test_an_agent_that_is_a_reaper_leaves_no_zombies(operator, variables, fake_trainer, tmp_path) -> None:
    program = """
import asyncio, os, sys
from trainingjob_agent.host_environment import read_environment
from trainingjob_agent.orphans import become_subreaper
from trainingjob_agent.supervisor import Supervisor
async def run():
    return await Supervisor(read_environment(os.environ), sys.argv[1:]).run()
become_subreaper()
sys.exit(asyncio.run(run()))
"""
    operator.hold_seconds = operator.report_again_seconds = 0.1
    command = fake_trainer(g1="orphans")
    environ = os.environ | variables | {"TMPDIR": str(tmp_path)}
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *command, env=environ)
    try:
        await operator.hear(has_standby)
        await operator.say(Directive.TRAIN, world(1))
        await operator.hear(lambda report: is_training(1)(report) and report.standby)
        await operator.hear(lambda _: not zombies_of(agent.pid))
        await operator.say(Directive.FINISH, outcome="Failed")

        assert await asyncio.wait_for(agent.wait(), 20) == 0
    finally:
        if agent.returncode is None:
            agent.kill()
            await agent.wait()


def zombies_of(parent: int) -> list[int]:
    return [pid for pid in children_of(parent) if b") Z " in read_proc(pid, "stat")]
