"""The Service routes agents to the leader's pod alone, which carries the label."""

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web

from trainingjob_operator.shell import leader_label
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.kinds import POD
from trainingjob_operator.shell.leader_label import LEADER_LABEL, LeaderLabel

NAMESPACE = "trainingjob-system"
PATIENCE_SECONDS = 20.0


class Pod:
    """The pod of an operator, and what its label's keeper did."""

    def __init__(self, api: Api, api_server: Any, name: str) -> None:
        api_server.put(POD, {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "operator"}}})
        self.is_leading = True
        self.times_labelled = 0
        self.label = LeaderLabel(api, NAMESPACE, name, lambda: self.is_leading, self.count)

    def count(self) -> None:
        self.times_labelled += 1


@pytest.fixture
def one(api: Api, api_server: Any) -> Pod:
    return Pod(api, api_server, "one")


@pytest.fixture
def two(api: Api, api_server: Any) -> Pod:
    return Pod(api, api_server, "two")


def labelled(api_server: Any) -> dict[str, str]:
    pods = (item for key, item in api_server.objects.items() if key[0] is POD)
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"][LEADER_LABEL]
        for pod in pods
        if LEADER_LABEL in pod["metadata"]["labels"]
    }


async def test_a_new_leader_takes_the_label_from_the_lost_one(one: Pod, two: Pod, api_server: Any) -> None:
    assert await one.label.refresh()
    assert labelled(api_server) == {"one": "true"}

    assert await two.label.refresh()

    assert labelled(api_server) == {"two": "true"}
    assert api_server.find(POD, NAMESPACE, "two")["metadata"]["labels"]["app"] == "operator"


async def test_right_labels_are_written_once(one: Pod, api_server: Any) -> None:
    await one.label.refresh()
    version = api_server.version

    assert await one.label.refresh()

    assert api_server.version == version
    assert one.times_labelled == 1


async def test_an_operator_that_lost_the_lease_meanwhile_writes_nothing(one: Pod, api_server: Any) -> None:
    def lose(request: web.Request) -> None:
        one.is_leading = False

    api_server.fault = lose

    assert not await one.label.refresh()
    assert labelled(api_server) == {}


async def test_a_lasting_problem_is_logged_once(one: Pod, api_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    api_server.fault = lambda request: web.Response(status=403) if request.method == "PATCH" else None

    assert not await one.label.refresh()
    assert not await one.label.refresh()
    assert caplog.messages.count("cannot label the leader's pod") == 1

    api_server.fault = lambda _: None
    assert await one.label.refresh()


async def test_a_pod_that_is_gone_needs_no_change(one: Pod, two: Pod, api_server: Any) -> None:
    await one.label.refresh()

    def delete(request: web.Request) -> None:
        if request.method == "PATCH" and request.path.endswith("/one"):
            api_server.drop(POD, NAMESPACE, "one")

    api_server.fault = delete

    assert await two.label.refresh()
    assert labelled(api_server) == {"two": "true"}


async def test_it_labels_after_each_election_and_only_while_it_leads(
    one: Pod, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_label, "REFRESH_SECONDS", 1000.0)
    monkeypatch.setattr(leader_label, "RETRY_SECONDS", 0.01)
    one.is_leading = False
    running = asyncio.create_task(one.label.run())
    await asyncio.sleep(0.05)
    assert api_server.requests == []

    faults = [web.Response(status=503), web.Response(status=503)]
    api_server.fault = lambda _: faults.pop() if faults else None
    one.is_leading = True
    one.label.wake()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not one.times_labelled:  # noqa: ASYNC110  # the label has no event
            await asyncio.sleep(0.01)
    assert labelled(api_server) == {"one": "true"}
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
