"""The whole operator as one process would run it, against an API server in memory."""

import asyncio
import copy
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration

from tests.support.builders import ready_node
from tests.support.job_metrics import restarted
from tests.support.running_operator import HOST, SETTINGS, found, until
from tests.support.tokens import make_token
from trainingjob_api.protocol import REPORT_PATH, TOKEN_AUDIENCE
from trainingjob_operator.core.names import CA_CONFIG_MAP, JOB_LABEL, UID_LABEL
from trainingjob_operator.shell import leader_election
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.assembly import Operator
from trainingjob_operator.shell.kinds import CONFIG_MAP, JOB, JOB_SET, LEASE, NODE, POD, SECRET, TRAINING_JOB
from trainingjob_operator.shell.process import ListenPorts

EXAMPLE = yaml.safe_load((Path(__file__).parents[2] / "crds/examples/demo.yaml").read_text())
GOOD = make_token("good")


@pytest.fixture
def job(api_server: Any) -> dict[str, Any]:
    metadata = {"name": "demo", "namespace": "research", "generation": 1}
    return api_server.put(TRAINING_JOB, {"metadata": metadata, "spec": copy.deepcopy(EXAMPLE["spec"])})


def pod_of(api_server: Any, jobset: dict[str, Any]) -> dict[str, Any]:
    """Make the first pod of a JobSet and its Job, as the controllers would."""
    labels = {key: jobset["metadata"]["labels"][key] for key in (JOB_LABEL, UID_LABEL)}

    def put(kind: Any, name: str, owner: dict[str, Any], **fields: Any) -> dict[str, Any]:
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata = {"name": name, "namespace": "research", "labels": labels}
        return api_server.put(
            kind, {"metadata": metadata | {"ownerReferences": [reference | {"controller": True}]}, **fields}
        )

    child = put(JOB, f"{jobset['metadata']['name']}-slice-0", jobset, spec={"parallelism": 2})
    return put(POD, f"{child['metadata']['name']}-0", child, spec={}, status={"phase": "Pending"})


async def test_job_has_its_children_and_a_status(start: Any, api_server: Any, job: Any) -> None:
    await start()

    (jobset,) = await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    await until(lambda: len(found(api_server, CONFIG_MAP)) == 2, "the RunConfig and the certificates are there")
    certificates, config_map = sorted(found(api_server, CONFIG_MAP), key=lambda one: one.get("immutable", False))
    status = await until(lambda: found(api_server, TRAINING_JOB)[0].get("status"), "the job has a status")

    assert jobset["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert config_map["data"].keys() == {"run.json"}
    assert certificates["metadata"]["name"] == CA_CONFIG_MAP
    assert "BEGIN CERTIFICATE" in certificates["data"]["ca.crt"]
    assert {condition["type"]: condition["status"] for condition in status["conditions"]}["Valid"] == "True"


async def test_a_job_that_comes_later_is_seen_by_the_watch(start: Any, api_server: Any) -> None:
    running = await start()
    await until(lambda: running.operator.lease.is_leading, "it leads")
    await until(lambda: api_server.is_watched(TRAINING_JOB), "it watches")

    metadata = {"name": "later", "namespace": "research", "generation": 1}
    api_server.put(TRAINING_JOB, {"metadata": metadata, "spec": copy.deepcopy(EXAMPLE["spec"])})

    await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    creation = api_server.requests.index(f"POST {JOB_SET.path('research')}")
    assert f"GET {TRAINING_JOB.path('research', 'later')}" not in api_server.requests[:creation], "its event suffices"


@pytest.fixture
def make_agent(api_server: Any, job: Any):
    """Return a function that creates a pod of a JobSet, whose token is `good`, and returns its report."""

    def make(jobset: dict[str, Any]) -> dict[str, Any]:
        pod = pod_of(api_server, jobset)
        extra = {f"authentication.kubernetes.io/pod-{key}": [pod["metadata"][key]] for key in ("name", "uid")}
        user = {"username": "system:serviceaccount:research:default", "extra": extra}
        status = {"authenticated": True, "audiences": [TOKEN_AUDIENCE], "user": user}
        api_server.reviews["tokenreviews"] = lambda spec: status if spec["token"] == GOOD else {}
        return {
            "jobUid": job["metadata"]["uid"],
            "pod": pod["metadata"]["name"],
            "podUid": pod["metadata"]["uid"],
            "slice": 0,
            "host": 0,
            "address": "10.0.0.1",
            "instance": "a",
            "port": 4000,
            "standby": True,
        }

    return make


async def test_report_of_an_agent_is_answered(start: Any, api_server: Any, make_agent: Any) -> None:
    running = await start()
    (jobset,) = await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    report = make_agent(jobset)

    code, answer = await running.post("rendezvous", REPORT_PATH, report, token=GOOD)
    assert (code, answer["directive"]) == (200, "wait")
    code, answer = await running.post("rendezvous", REPORT_PATH, report, token=make_token("bad"))
    assert (code, answer["error"]) == (401, f"the token is not valid for {TOKEN_AUDIENCE}: refused")
    code, answer = await running.post("rendezvous", REPORT_PATH, {**report, "podUid": "other"}, token=GOOD)
    assert code == 403


@pytest.mark.thorough
async def test_agents_get_the_last_directives_without_an_api_server(
    start: Any, api_server: Any, make_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "RENEW_DEADLINE_SECONDS", 1.0)
    monkeypatch.setattr(leader_election, "RETRY_PERIOD_SECONDS", 0.2)
    monkeypatch.setattr(leader_election, "MOVE_AFTER_SECONDS", 0.0)
    running = await start()
    (jobset,) = await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    report = make_agent(jobset)
    before = await running.post("rendezvous", REPORT_PATH, report, token=GOOD)
    assert not running.has_closed

    lost = asyncio.get_running_loop().time()
    api_server.fault = lambda _: web.Response(status=503)
    await until(lambda: not running.operator.lease.is_leading, "the lease is lost")
    assert await running.post("rendezvous", REPORT_PATH, report, token=GOOD) == before
    assert running.has_closed, "another operator may lead, to which the Service routes a new connection"
    assert (await running.get("/readyz"))[0] == 200
    api_server.fault = lambda _: None
    await until(lambda: running.operator.lease.is_leading, "it leads again")
    listening = running.operator.hub.heartbeat_state(("research", report["jobUid"])).listening_seconds
    assert 0 < listening < asyncio.get_running_loop().time() - lost, "no host was silent while it was not heard"

    metadata = {"name": "later", "namespace": "research", "generation": 1}
    api_server.put(TRAINING_JOB, {"metadata": metadata, "spec": copy.deepcopy(EXAMPLE["spec"])})
    await until(lambda: len(found(api_server, JOB_SET)) == 2, "the watch is back")


async def test_probes_and_metrics(start: Any, api_server: Any, job: Any) -> None:
    running = await start()
    await until(lambda: running.operator.lease.is_leading, "it leads")
    await until(lambda: found(api_server, TRAINING_JOB)[0].get("status"), "the job has a status")

    assert await running.get("/healthz") == (200, "ok\n")
    assert await running.get("/readyz") == (200, "ok\n")
    _, text = await running.get("/metrics")
    assert "trainingjob_leading 1.0" in text
    assert 'trainingjob_jobs{namespace="research",phase=' in text


async def test_a_new_leader_does_not_count_the_restarts_before_it_again(start: Any, api_server: Any, job: Any) -> None:
    """The job looks younger than the process: another leader was there when it was created and restarted."""
    (known,) = found(api_server, TRAINING_JOB)
    known["metadata"]["creationTimestamp"] = "2999-01-01T00:00:00Z"
    known["status"] = restarted("Crash")
    running = await start()
    await until(lambda: running.operator.lease.is_leading, "it leads")

    _, text = await running.get("/metrics")

    assert 'trainingjob_phase{name="demo",' in text
    assert "trainingjob_restarts_total{" not in text


async def test_metrics_over_tls_need_a_token(start: Any) -> None:
    running = await start(replace(SETTINGS, metrics_authentication=True))
    await until(lambda: running.operator.lease.is_leading, "it leads")

    trusting = ssl.create_default_context(cadata=running.operator.tls.bundle)
    url = f"https://127.0.0.1:{running.ports['metrics_tls']}/metrics"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        session.get(url, server_hostname=HOST) as response,
    ):
        assert response.status == 401
    assert (await running.get("/metrics"))[0] == 404


def spec_on(accelerator: str) -> dict[str, Any]:
    spec = copy.deepcopy(EXAMPLE["spec"])
    spec["slices"] |= {"accelerator": accelerator, "topology": "4"}
    return spec


async def test_custom_accelerators_are_used_and_invalid_ones_are_named(
    start: Any, api_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "accelerators.yaml"
    path.write_text("plain: {platform: cuda, resource: example.com/gpu, topologies: {4: {}}}\nbroken: {platform: cuda}")
    metadata = {"name": "demo", "namespace": "research", "generation": 1}
    api_server.put(TRAINING_JOB, {"metadata": metadata, "spec": spec_on("plain")})
    running = await start(replace(SETTINGS, accelerators=path))
    jobset, *_ = await until(lambda: found(api_server, JOB_SET), "a JobSet is there")

    (replicated,) = jobset["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["example.com/gpu"] == "4"
    _, text = await running.get("/metrics")
    assert 'trainingjob_refused_accelerators{name="broken"} 1.0' in text
    (reported,) = [record.fields for record in caplog.records if record.getMessage() == "ignoring an invalid row"]
    assert (reported["table"], reported["name"]) == ("accelerators", "broken")
    assert reported["why"] == "resource: Field required. topologies: Field required."


async def test_a_deleted_watched_namespace_stops_no_job_of_another(start: Any, api_server: Any, job: Any) -> None:
    forbidden = {"kind": "Status", "message": "jobsets is forbidden"}
    api_server.fault = lambda request: (
        web.json_response(forbidden, status=403) if "/namespaces/gone/" in request.path else None
    )
    running = await start(replace(SETTINGS, namespaces=("gone", "research")))

    await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    assert await running.get("/readyz") == (200, "ok\n")
    assert "trainingjob_unreadable_namespaces 1.0" in (await running.get("/metrics"))[1]


async def test_the_node_that_it_runs_on_is_known(start: Any, api_server: Any) -> None:
    """If that node is reported as lost, the operator itself is partitioned, and no other node counts as lost."""
    api_server.put(NODE, ready_node("system-1", ready=False))
    running = await start(replace(SETTINGS, node="system-1"))
    await until(running.operator.reflector.synced.is_set, "all is listed")

    children = await running.operator.cluster.read_children("research", "job-uid")

    assert (children.own_node or {})["metadata"]["name"] == "system-1"


@pytest.mark.slow  # the second waits until the Lease of the first has expired
async def test_of_two_only_one_leads_and_the_other_takes_over(start: Any, api_server: Any, job: Any) -> None:
    first, second = await start(), await start()
    await until(lambda: found(api_server, JOB_SET), "a JobSet is there")
    leader, other = (first, second) if first.operator.lease.is_leading else (second, first)
    await until(lambda: other.operator.lease.other_holder, "the other knows who leads")

    assert not other.operator.lease.is_leading
    assert (await other.get("/readyz"))[0] == (await leader.get("/readyz"))[0] == 200
    assert "trainingjob_jobs{" not in (await other.get("/metrics"))[1]
    assert "trainingjob_jobs{" in (await leader.get("/metrics"))[1]
    code, _ = await other.post("rendezvous", REPORT_PATH, {}, token="any")
    assert code == 503

    leader.stop.set()
    await until(lambda: other.operator.lease.is_leading, "the other leads")
    assert len(found(api_server, JOB_SET)) == 1
    assert len(found(api_server, LEASE)) == 1
    assert len(found(api_server, SECRET)) == 1


async def test_job_reports_a_missing_jobset_crd_and_continues_when_it_is_installed(
    start: Any, api_server: Any, job: Any
) -> None:
    api_server.kinds.remove(JOB_SET)
    running = await start()
    status = await until(lambda: found(api_server, TRAINING_JOB)[0].get("status"), "the job has a status")
    assert "JobSet" in " ".join(condition.get("message", "") for condition in status["conditions"])

    api_server.kinds.add(JOB_SET)
    await running.operator.reflector._try_to_list(JOB_SET)
    running.operator.scheduler.wake("research", "demo")

    await until(lambda: found(api_server, JOB_SET), "a JobSet is there")


async def test_a_part_that_breaks_ends_the_process(
    start: Any, api_server: Any, server: Any, unused_tcp_port: int
) -> None:
    async with Api(Configuration(host=server[1])) as api:
        operator = Operator(SETTINGS, api)
        operator.reflector.run = broken  # type: ignore[method-assign]

        with pytest.raises(ZeroDivisionError):
            await operator.run(asyncio.Event(), ListenPorts(0, 0, 0))


async def broken() -> None:
    raise ZeroDivisionError
