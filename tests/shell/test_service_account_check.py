"""A job with a ServiceAccount runs only if objects of the API server prove the admission by the webhook."""

from typing import Any

import pytest
from aiohttp import web

from tests.support.builders import NAME, NAMESPACE, UID, spec_manifest
from tests.support.simulation import SETTINGS, Simulation
from trainingjob_api.spec.job import GROUP, PLURAL
from trainingjob_operator.shell import service_account_check
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.kinds import WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.service_account_check import ServiceAccountCheck

CREATED = "2026-11-21T12:00:30Z"


def job(account: Any = "trainer", **changes: Any) -> dict[str, Any]:
    metadata = {"name": NAME, "namespace": NAMESPACE, "uid": UID, "creationTimestamp": CREATED}
    return {"metadata": metadata, "spec": {"runtime": {"serviceAccountName": account}}, **changes}


def configure(api_server: Any, created: str = "2026-11-21T12:00:00Z", **changes: Any) -> None:
    rule = {"apiGroups": [GROUP], "resources": [PLURAL], "operations": ["CREATE", "UPDATE"]}
    webhook = {"name": "validate.trainingjob.dev", "failurePolicy": "Fail", "rules": [rule], **changes}
    metadata = {"name": "trainingjob-operator", "creationTimestamp": created}
    api_server.put(WEBHOOK_CONFIGURATION, {"metadata": metadata, "webhooks": [webhook]})


def make(api: Any, *, enabled: bool = True, allowed: bool = False) -> ServiceAccountCheck:
    return ServiceAccountCheck(api, "trainingjob-operator", is_enabled=enabled, allows_unchecked=allowed)


OTHER_RULE = {"apiGroups": ["apps"], "resources": ["deployments"], "operations": ["CREATE"]}
ONLY_UPDATES = {"apiGroups": [GROUP], "resources": [PLURAL], "operations": ["UPDATE"]}
CONFIGURED: dict[str, tuple[dict[str, Any], str]] = {
    "refuses while it is away": ({}, ""),
    "a default policy": ({"failurePolicy": None}, ""),
    "lets jobs in while it is away": ({"failurePolicy": "Ignore"}, "failurePolicy"),
    "made after the job": ({"created": "2026-11-21T12:01:00Z"}, "older than"),
    "made in the same second": ({"created": CREATED}, "older than"),
    "made a moment before the job": ({"created": "2026-11-21T12:00:25Z"}, "older than"),
    "without a time": ({"created": ""}, "older than"),
    "asks about something else": ({"rules": [OTHER_RULE]}, "not configured"),
    "asks about updates alone": ({"rules": [ONLY_UPDATES]}, "not configured"),
    "without rules": ({"rules": []}, "not configured"),
}


@pytest.mark.parametrize(("changes", "want"), CONFIGURED.values(), ids=CONFIGURED.keys())
async def test_service_account_needs_proof_of_admission_by_the_webhook(
    changes: Any, want: str, api: Any, api_server: Any
) -> None:
    configure(api_server, **changes)

    problem = await make(api).find_problem(job())

    assert (want in str(problem)) if want else problem is None
    if problem:
        assert problem.path == "spec.runtime.serviceAccountName"
        assert "webhook.allowUncheckedServiceAccounts" in problem.message


async def test_without_a_configuration_none_is_allowed(api: Any, api_server: Any) -> None:
    assert "not configured" in str(await make(api).find_problem(job()))

    api_server.kinds.remove(WEBHOOK_CONFIGURATION)
    assert "not configured" in str(await make(api).find_problem(job()))


async def test_without_the_webhook_none_is_allowed_whatever_is_configured(api: Any, api_server: Any) -> None:
    configure(api_server)

    assert "without its webhook" in str(await make(api, enabled=False).find_problem(job()))


NEEDS_NONE = {
    "names none": (job(""), True, False),
    "names one of a wrong type": (job(["x"]), True, False),
    "all are allowed": (job(), True, True),
    "all are allowed without a webhook": (job(), False, True),
    "it has run": (job(status={"attempts": [{"generation": 1}]}), False, False),
}


@pytest.mark.parametrize(("one", "enabled", "allowed"), NEEDS_NONE.values(), ids=NEEDS_NONE.keys())
async def test_job_without_a_service_account_needs_no_reads(
    one: Any, enabled: bool, allowed: bool, api: Any, api_server: Any
) -> None:
    assert await make(api, enabled=enabled, allowed=allowed).find_problem(one) is None
    assert api_server.requests == []


async def test_many_jobs_cost_one_request(api: Any, api_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(api_server)
    known = make(api)
    for _ in range(5):
        await known.find_problem(job())
    assert len(api_server.requests) == 1

    monkeypatch.setattr(service_account_check, "CACHE_SECONDS", 0.0)
    api_server.drop(WEBHOOK_CONFIGURATION, "", "trainingjob-operator")
    assert await known.find_problem(job()) is not None


async def test_no_decision_without_the_api_server(api: Any, api_server: Any) -> None:
    api_server.fault = lambda _: web.Response(status=503)

    with pytest.raises(ClusterUnavailableError):
        await make(api).find_problem(job())


async def test_rejected_account_is_a_condition_and_creates_nothing(api: Any) -> None:
    sim = Simulation()
    sim.job["spec"] = spec_manifest()
    sim.job["spec"]["runtime"]["serviceAccountName"] = "trainer"
    check = make(api, enabled=False).find_problem
    sim.reconciler = Reconciler(sim.cluster, sim.hub, lambda: SETTINGS, sim.time.now, check_account=check)

    await sim.reconciler.reconcile(NAMESPACE, NAME)

    assert sim.condition("Valid")[0] == "False"
    assert sim.status.problems[0].startswith("spec.runtime.serviceAccountName: no webhook has verified")
    assert sim.cluster.writes == ["status TrainingJob"]
