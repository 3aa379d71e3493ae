"""Whether the API server serves Kueue's group, and the PodGroups of the Kubernetes scheduler."""

import asyncio

import pytest
from aiohttp import web

from tests.shell.conftest import ApiServer
from trainingjob_operator.shell import kind_discovery
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.kind_discovery import KindDiscovery, KueueDiscovery
from trainingjob_operator.shell.kinds import POD_GROUP, WORKLOAD


async def test_discovery_knows_whether_kueue_is_installed(
    api: Api, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery = KueueDiscovery(api)

    assert not await discovery.is_served()
    assert not await discovery.is_served()
    assert api_server.requests == ["GET /apis/kueue.x-k8s.io"]
    api_server.kinds.add(WORKLOAD)
    monkeypatch.setattr(kind_discovery, "SERVED_SECONDS", 0.0)
    assert await discovery.is_served()


async def test_discovery_knows_whether_a_version_has_a_kind(
    api: Api, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_discovery, "SERVED_SECONDS", 0.0)
    discovery = KindDiscovery(api, POD_GROUP)

    assert not await discovery.is_served()
    for names, is_served in ((["workloads"], False), (["workloads", "podgroups", "podgroups/status"], True)):
        answer = {"resources": [{"name": name} for name in names]}
        api_server.fault = lambda request, answer=answer: web.json_response(answer)
        assert await discovery.is_served() is is_served
    assert api_server.requests[0] == "GET /apis/scheduling.k8s.io/v1alpha2"


async def test_jobs_that_start_together_get_the_same_answer(api: Api, api_server: ApiServer) -> None:
    answer = {"resources": [{"name": "podgroups"}]}
    api_server.fault = lambda request: web.json_response(answer)
    discovery = KindDiscovery(api, POD_GROUP)

    assert await asyncio.gather(discovery.is_served(), discovery.is_served()) == [True, True]
    assert len(api_server.requests) == 1


async def test_only_kueue_counts_as_served_while_the_api_server_is_away(api: Api, api_server: ApiServer) -> None:
    api_server.fault = lambda request: web.Response(status=503)

    assert await KueueDiscovery(api).is_served()
    assert not await KindDiscovery(api, POD_GROUP).is_served()
