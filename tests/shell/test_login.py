"""Credentials are found in a pod or a kubeconfig, and renewed without a restart."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError as Unavailable
from trainingjob_operator.shell.kinds import CONFIG_MAP, POD
from trainingjob_operator.shell.login import connect, connect_as_user, read_service_account


async def test_neither_cluster_nor_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))

    with pytest.raises(Unavailable, match="no usable kubeconfig"):
        await connect()


async def test_kubeconfig_is_read_and_not_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    text = (
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],\n"
        " clusters: [{name: k, cluster: {server: 'https://k.example'}}], users: [{name: u, user: {token: secret}}]}\n"
    )
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    async with await connect() as api:
        assert api.configuration.host == "https://k.example"
    assert path.read_text() == text


def kubeconfig(server: str, **user: Any) -> str:
    """Return a kubeconfig with one user (JSON is YAML)."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user}],
        }
    )


def take_only(api_server: Any, token: str) -> None:
    """Let the API server reject every other token."""

    def refuse(request: web.Request) -> web.Response | None:
        is_good = request.headers.get("Authorization") == f"Bearer {token}"
        return None if is_good else web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)

    api_server.fault = refuse


def write_plugin(folder: Path) -> dict[str, Any]:
    """Return a user whose token a program prints: the next one at each run."""
    script = (
        'n=$(($(cat "$1" 2>/dev/null || echo 0) + 1)); echo $n > "$1"; '
        'echo "{\\"kind\\": \\"ExecCredential\\", \\"apiVersion\\": \\"client.authentication.k8s.io/v1\\", '
        '\\"status\\": {\\"token\\": \\"t$n\\", \\"expirationTimestamp\\": \\"2100-01-01T00:00:00Z\\"}}"'
    )
    args = ["-c", script, "sh", str(folder / "count")]
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": args}}


async def log_in(url: str, folder: Path, **user: Any) -> Api:
    """Connect as a user of a kubeconfig, `config` in a folder."""
    path = folder / "config"
    path.write_text(kubeconfig(url, **user))
    api, _ = await connect_as_user(str(path), None)
    return api


async def test_expired_token_is_renewed_and_the_write_is_made_once(
    server: Any, api_server: Any, make_child: Any, tmp_path: Path
) -> None:
    async with await log_in(server[1], tmp_path, **write_plugin(tmp_path)) as api:
        take_only(api_server, "t2")

        made = await api.create(CONFIG_MAP, make_child("c"), "research")

    assert made["metadata"]["name"] == "c"
    assert api_server.requests == ["POST /api/v1/namespaces/research/configmaps"] * 2


async def test_one_of_many_rejected_requests_renews_the_token(server: Any, api_server: Any, tmp_path: Path) -> None:
    async with await log_in(server[1], tmp_path, **write_plugin(tmp_path)) as api:
        take_only(api_server, "t2")

        await asyncio.gather(*(api.get(POD, "research", f"p{number}") for number in range(5)))

    assert (tmp_path / "count").read_text() == "2\n"


async def test_new_login_needs_no_restart(server: Any, api_server: Any, tmp_path: Path) -> None:
    take_only(api_server, "new")
    async with await log_in(server[1], tmp_path, token="old") as api:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"401 Unauthorized \(the credentials may have expired\)"):
                await api.get(POD, "research", "p")
        assert len(api_server.requests) == 2, "the same token is not sent again"

        (tmp_path / "config").write_text(kubeconfig(server[1], token="new"))
        assert await api.get(POD, "research", "p") is None


async def test_a_kubeconfig_that_is_gone_when_a_token_has_expired(server: Any, api_server: Any, tmp_path: Path) -> None:
    take_only(api_server, "new")
    async with await log_in(server[1], tmp_path, token="old") as api:
        (tmp_path / "config").unlink()

        with pytest.raises(Unavailable, match="no usable kubeconfig"):
            await api.get(POD, "research", "p")


async def test_token_is_not_used_past_its_expiry_after_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("old")
    authority.write_text("not looked at here")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "k.example")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    configuration = Configuration()
    await read_service_account(configuration)
    token.write_text("new")
    assert await configuration.get_api_key_with_prefix("BearerToken") == "bearer old", "the client looks by the clock"

    await read_service_account(configuration)

    assert await configuration.get_api_key_with_prefix("BearerToken") == "bearer new"
    token.unlink()
    with pytest.raises(Unavailable, match="no usable service account"):
        await read_service_account(configuration)


async def test_another_current_context_leads_to_no_other_cluster(server: Any, api_server: Any, tmp_path: Path) -> None:
    take_only(api_server, "new")
    async with await log_in(server[1], tmp_path, token="old") as api:
        config = json.loads(kubeconfig(server[1], token="new"))
        config["clusters"].append({"name": "other", "cluster": {"server": "http://other.example"}})
        config["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "u"}})
        (tmp_path / "config").write_text(json.dumps(config | {"current-context": "other"}))

        assert await api.get(POD, "research", "p") is None
