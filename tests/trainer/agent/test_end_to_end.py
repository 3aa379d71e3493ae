"""Agents as pods run them, with the real trainer: a world forms, shrinks, grows and is left."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.trainer.tiny import UID, make_config, make_spec
from trainingjob_api.protocol import Directive, FailureReason, HostReport, Phase
from trainingjob_api.world import Member, Span, World

pytestmark = pytest.mark.slow

type Agent = asyncio.subprocess.Process


@pytest.fixture
def endless(variables, text, tmp_path) -> None:
    """Let the job train until it receives a directive."""
    spec = make_spec(tmp_path / "checkpoints", text, training__steps=1_000_000, checkpoint__save__everySteps=5)
    Path(variables["TRAININGJOB_CONFIG"]).write_text(make_config(spec).model_dump_json(by_alias=True))


@pytest.fixture
async def launch(endless, operator, variables, programs, tmp_path) -> AsyncIterator[Callable[..., object]]:
    """Return a function that starts the agent of a pod; pod `<name>-<n>` is slice n."""
    operator.patience_seconds = 300
    operator.hold_seconds = operator.report_again_seconds = 0.2
    agents: list[Agent] = []

    async def start(pod_uid: str) -> Agent:
        pod = {
            "TRAININGJOB_POD": pod_uid,
            "TRAININGJOB_POD_UID": pod_uid,
            "TRAININGJOB_SLICE_OFFSET": "0",
            "TRAININGJOB_JOB_INDEX": pod_uid[-1],
            "TRAININGJOB_COMPILE_CACHE": str(programs),
            "TMPDIR": str(tmp_path),
        }
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trainingjob_agent.main", env=os.environ | variables | pod
        )
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        if agent.returncode is None:
            agent.kill()
        await agent.wait()


def form(generation: int, lineage: tuple[Span, ...], *reports: HostReport) -> World:
    members = tuple(
        Member(process=process, slice=one.slice, host=0, pod=one.pod, pod_uid=one.pod_uid, address=one.address)
        for process, one in enumerate(reports)
    )
    return World(
        generation=generation,
        job_uid=UID,
        coordinator=f"{reports[0].address}:{reports[0].port}",
        members=members,
        lineage=lineage,
    )


def is_ready(report: HostReport) -> bool:
    return report.standby and is_well(report)


def has_committed(generation: int) -> Callable[[HostReport], bool]:
    return lambda report: is_well(report) and report.generation == generation and bool(report.committed)


def is_in(generation: int, phase: Phase) -> Callable[[HostReport], bool]:
    return lambda report: is_well(report) and report.generation == generation and report.phase is phase


def is_well(report: HostReport) -> bool:
    """Return True, or end the test at once: nothing in it may fail, but for want of the host that is killed."""
    assert report.failure is None or report.failure.reason is FailureReason.PEER
    return True


async def test_two_slices_shrink_resume_grow_back_and_drain(operator, launch) -> None:
    survivor, victim = await launch("uid-0"), await launch("uid-1")
    hosts = await operator.hear(is_ready), await operator.hear(is_ready, "uid-1")
    await operator.say(Directive.TRAIN, form(1, (), *hosts))
    host = await operator.hear(lambda report: has_committed(1)(report) and report.standby)

    # The power of slice 1 goes; the other takes over from what is saved, in the pod that it has.
    victim.kill()
    await victim.wait()
    lineage = (Span(generation=1, first=1),)
    await operator.say(Directive.TRAIN, form(2, lineage, host))
    shrunk = await operator.hear(lambda report: has_committed(2)(report) and report.standby)
    assert shrunk.restored is not None
    assert shrunk.restored >= (host.committed or 0) > 0
    assert shrunk.instance == host.instance

    # Slice 1 is back: leave at a step boundary, then go on together without a lost step.
    await launch("new-1")
    await operator.hear(is_ready, "new-1")
    lineage = (Span(generation=1, first=1, last=shrunk.restored), Span(generation=2, first=shrunk.restored + 1))
    await operator.say(Directive.LEAVE, form(2, lineage[:1], host))
    left = await operator.hear(is_in(2, Phase.LEFT))
    await operator.say(Directive.TRAIN, form(3, lineage, left, await operator.hear(is_ready, "new-1")))
    grown = await operator.hear(has_committed(3), "new-1")
    assert left.progress is not None
    assert left.committed == left.progress.step
    assert grown.restored == left.committed

    # The pod of slice 0 is deleted: both save and leave together, and its index stays incomplete.
    survivor.send_signal(signal.SIGTERM)
    assert await survivor.wait() == 143
    other = await operator.hear(is_in(3, Phase.LEFT), "new-1")
    same = await operator.hear(is_in(3, Phase.LEFT))
    assert other.committed == same.committed
