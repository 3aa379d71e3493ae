"""The commands `profile` and `stacks`: their requests, and the results that they find in the logs of the hosts."""

import json

import pytest

from tests.support.builders import NAME, UID
from tests.support.job_api import ENDED, RUNNING, FakeApi, call
from trainingjob_api.inspection import STACKS
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import WorldStatus
from trainingjob_operator.cli import inspection


@pytest.fixture
def inspected(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Give a job whose world has both pods."""
    monkeypatch.setattr(inspection.secrets, "token_hex", lambda _: "abc")
    pods = tuple(f"{pod['metadata']['name']}/{pod['metadata']['uid']}" for pod in api.pods)
    world = WorldStatus(generation=3, coordinator="a:1", members="x", pods=pods, since="2026-11-21T12:00:00Z")
    api.states = [RUNNING.model_copy(update={"world": world})]
    return api


def log_of(api: FakeApi, host: int) -> list[str]:
    return api.logs[api.pods[host]["metadata"]["name"]]


WRITTEN = "[world 3] 2026-11-21 12:00:01,000 INFO trace written name=request-abc steps=7-9 folder=/shared/run/profiles"


async def test_profile_requests_a_trace_and_says_how_to_open_it(inspected: FakeApi) -> None:
    log_of(inspected, 0).append(WRITTEN)

    result = await call("profile", NAME, "--steps", "3")

    (((request,),),) = (inspected.patches,)
    value = request["value"]
    asked = json.loads(value if isinstance(value, str) else value["trainingjob.dev/inspect"])
    assert (asked["kind"], asked["steps"], asked["hosts"], asked["jobUid"]) == ("trace", 3, "first", UID)
    assert result.code == 0, result.err
    assert result.out[:2] == [
        "slice 0 host 0: steps 7-9",
        "trace request-abc is below /shared/run/profiles, on the volume of `checkpoint.uri`. Where it is mounted:",
    ]
    assert "xprof --logdir /shared/run/profiles" in result.out[2]


async def test_a_host_without_a_trace_is_reported(inspected: FakeApi) -> None:
    log_of(inspected, 0).append(WRITTEN)
    log_of(inspected, 1).append("[world 3] WARNING trace not written name=request-abc error=no space left")

    result = await call("profile", NAME, "--host", "all")

    assert result.code == 1
    assert result.out[:2] == ["slice 0 host 0: steps 7-9", "slice 0 host 1: no trace: no space left"]


async def test_stacks_of_all_hosts_are_printed(inspected: FakeApi) -> None:
    for host in (0, 1):
        text = f"running, 0.99 cores\n\nThread 0x1 (most recent call first):\n  File loop.py, line {host}"
        log_of(inspected, host).extend(f"[agent] {STACKS.format(id='abc', text=text)}".splitlines())

    result = await call("stacks", NAME)

    assert result.code == 0
    assert result.out == [
        line
        for host in (0, 1)
        for line in (
            f"--- slice 0 host {host}: running, 0.99 cores",
            "",
            "Thread 0x1 (most recent call first):",
            f"  File loop.py, line {host}",
        )
    ]


@pytest.mark.thorough
async def test_a_host_that_does_not_answer_is_named(inspected: FakeApi) -> None:
    result = await call("stacks", NAME, "--timeout", "1")

    assert result.code == 2
    assert result.err.startswith("Error: no result within 1 second: host 0 of slice 0, host 1 of slice 0. A new world")


@pytest.mark.parametrize("state", [RUNNING, ENDED])
async def test_a_job_without_a_world_has_no_trace(state: TrainingJobStatus, api: FakeApi) -> None:
    api.states = [state]

    result = await call("profile", NAME)

    assert (result.code, api.patches) == (1, [])
    assert result.err.startswith(f"Error: {NAME} is {state.phase}: no process of it trains.")


@pytest.mark.parametrize("phase", ["Queued", "Suspended"])
async def test_a_job_that_released_its_pods_has_no_stacks(phase: str, inspected: FakeApi) -> None:
    """Its status keeps the last world, whose hosts would never answer."""
    inspected.states = [inspected.states[0].model_copy(update={"phase": phase})]

    result = await call("stacks", NAME, "--timeout", "1")

    assert (result.code, inspected.patches) == (1, [])
    assert result.err.startswith(f"Error: {NAME} is {phase}: no process of it trains.")
