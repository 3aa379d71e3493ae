"""The whole operator's leadership, health and certificates, against an API server in memory."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.running_operator import HOST, SETTINGS, found, until
from trainingjob_operator.shell import assembly, leader_election
from trainingjob_operator.shell.certificates import renew
from trainingjob_operator.shell.kinds import LEASE, POD
from trainingjob_operator.shell.leader_label import LEADER_LABEL
from trainingjob_operator.shell.tls import to_secret_data


async def test_the_leader_labels_its_pod_and_is_known_by_its_name(start: Any, api_server: Any) -> None:
    for name in ("operator-a", "former"):
        labels = {"app": "operator"} | ({LEADER_LABEL: "true"} if name == "former" else {})
        api_server.put(POD, {"metadata": {"name": name, "namespace": "ml", "labels": labels}})
    await start(replace(SETTINGS, pod="operator-a"))

    def labelled() -> list[str]:
        pods = found(api_server, POD)
        return [pod["metadata"]["name"] for pod in pods if LEADER_LABEL in pod["metadata"]["labels"]]

    await until(lambda: labelled() == ["operator-a"], "only the leader's pod has the label")
    (lease,) = found(api_server, LEASE)
    assert lease["spec"]["holderIdentity"] == "operator-a"


async def test_foreign_certificates_without_a_webhook(start: Any, api_server: Any, tmp_path: Path) -> None:
    made = to_secret_data(renew(None, (HOST,), datetime.now(UTC)))
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text(made[name])

    running = await start(replace(SETTINGS, certificates=tmp_path, webhook_enabled=False))
    await until(lambda: running.operator.lease.is_leading, "it leads")

    assert running.operator.tls.bundle == made["ca.crt"]
    assert not any("secrets" in path or "webhookconfigurations" in path for path in api_server.requests)


async def test_an_operator_that_lists_no_more_is_to_be_restarted(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start()
    await until(lambda: running.operator.lease.is_leading, "it leads")
    monkeypatch.setattr(assembly, "MAX_LIST_SILENCE_SECONDS", -1.0)

    code, words = await running.get("/healthz")

    assert (code, words.split(" for ")[0]) == (503, "no list of objects succeeded")


async def test_without_an_api_server_it_is_alive_and_not_ready(start: Any, api_server: Any) -> None:
    api_server.fault = lambda _: web.Response(status=503)
    running = await start()
    await until(lambda: len(api_server.requests) > 1, "it has asked")

    assert await running.get("/healthz") == (200, "ok\n")
    assert await running.get("/readyz") == (503, "there is no certificate yet\n")


async def test_released_lease_is_not_acquired_again_before_the_end(
    start: Any, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "RETRY_PERIOD_SECONDS", 0.01)
    running = await start()
    await until(lambda: running.operator.lease.is_leading, "it leads")
    release = running.operator.lease.release

    async def release_slowly() -> None:
        await release()
        await asyncio.sleep(0.3)

    monkeypatch.setattr(running.operator.lease, "release", release_slowly)
    running.stop.set()
    await until(lambda: found(api_server, LEASE)[0]["spec"]["holderIdentity"] == "", "the Lease is released")
    await asyncio.sleep(0.2)

    assert found(api_server, LEASE)[0]["spec"]["holderIdentity"] == ""
