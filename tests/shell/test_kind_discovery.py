"""Whether the API server serves Kueue's group, and the versions of the Kubernetes scheduler's PodGroups."""

import asyncio

import pytest
from aiohttp import web

from tests.shell.conftest import ApiServer
from trainingjob_operator.shell import kind_discovery
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.kind_discovery import KueueDiscovery, PodGroupDiscovery
from trainingjob_operator.shell.kinds import POD_GROUPS, WORKLOAD, Kind

GROUP = "/apis/scheduling.k8s.io"
PRIORITY_CLASS = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", is_namespaced=False)
"""Every cluster serves the group, with this kind."""
BETA, ALPHA, *_ = POD_GROUPS


def forbid(request: web.Request) -> web.Response:
    return web.json_response({"kind": "Status", "message": "no access"}, status=403)


def be_away(request: web.Request) -> web.Response:
    return web.Response(status=503)


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


async def test_discovery_knows_each_version_that_has_pod_groups(
    api: Api, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_discovery, "SERVED_SECONDS", 0.0)
    discovery = PodGroupDiscovery(api)

    assert await discovery.versions() == ()
    api_server.kinds.add(PRIORITY_CLASS)
    assert await discovery.versions() == ()
    api_server.kinds |= {BETA, Kind("scheduling.k8s.io/v2", "PodGroup", "podgroups")}
    api_server.kinds |= {ALPHA, Kind("scheduling.k8s.io/v1alpha1", "Workload", "workloads")}
    assert sorted(await discovery.versions()) == ["v1alpha3", "v1beta1", "v2"]


async def test_a_version_that_is_gone_since_the_group_was_read_has_no_pod_groups(
    api: Api, api_server: ApiServer
) -> None:
    api_server.kinds |= {BETA, ALPHA}

    def lack(request: web.Request) -> web.Response | None:
        return web.Response(status=404) if request.path == f"{GROUP}/v1alpha3" else None

    api_server.fault = lack

    assert await PodGroupDiscovery(api).versions() == ("v1beta1",)


async def test_jobs_that_start_together_get_the_same_answer(api: Api, api_server: ApiServer) -> None:
    api_server.kinds.add(BETA)
    discovery = PodGroupDiscovery(api)

    assert await asyncio.gather(discovery.versions(), discovery.versions()) == [("v1beta1",), ("v1beta1",)]
    assert api_server.requests == [f"GET {GROUP}", f"GET {GROUP}/v1beta1"]


async def test_only_one_job_waits_for_a_newer_answer(
    api: Api, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_server.kinds.add(BETA)
    discovery = PodGroupDiscovery(api)
    await discovery.versions()
    api_server.kinds.remove(BETA)
    monkeypatch.setattr(kind_discovery, "SERVED_SECONDS", 0.0)

    assert await asyncio.gather(discovery.versions(), discovery.versions()) == [(), ("v1beta1",)]


@pytest.mark.parametrize("fault", [be_away, forbid])
async def test_only_kueue_counts_as_served_without_an_answer(api: Api, api_server: ApiServer, fault) -> None:
    api_server.kinds.add(BETA)
    api_server.fault = fault

    assert await KueueDiscovery(api).is_served()
    if fault is forbid:
        assert await PodGroupDiscovery(api).versions() == (), "there will never be an answer"
    else:
        with pytest.raises(ClusterUnavailableError, match="not known yet"):
            await PodGroupDiscovery(api).versions()


@pytest.mark.parametrize("fault", [be_away, forbid])
async def test_a_failed_request_keeps_the_last_answer(
    api: Api, api_server: ApiServer, fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_server.kinds.add(BETA)
    discovery = PodGroupDiscovery(api)
    monkeypatch.setattr(kind_discovery, "SERVED_SECONDS", 0.0)
    assert await discovery.versions() == ("v1beta1",)
    api_server.fault = fault

    for _ in range(2):
        assert await discovery.versions() == ("v1beta1",)


@pytest.mark.looptime
async def test_a_failed_request_is_repeated_after_a_few_seconds() -> None:
    answers = [("v1",), ClusterUnavailableError("503"), ClusterUnavailableError("429", retry_after=20.0), ("v2",)]
    requested = []

    class FakeApi:
        async def kind_versions(self, kind: Kind) -> tuple[str, ...]:
            requested.append(asyncio.get_running_loop().time())
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    discovery = PodGroupDiscovery(FakeApi())  # type: ignore[arg-type]
    for _ in range(90):
        versions = await discovery.versions()
        await asyncio.sleep(1.0)

    assert requested == [0.0, 60.0, 65.0, 85.0], "after 5 s, or as late as the API server requests"
    assert versions == ("v2",)
