"""The proxy of the API server: which variables name it, and which addresses have none."""

import asyncio

import pytest
from kubernetes.aio.client import Configuration

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.kinds import POD
from trainingjob_operator.shell.proxy import find_proxy
from trainingjob_operator.shell.watcher import make_session

PROXY = "http://proxy.example:3128"
SERVER = "https://10.96.0.1:443"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        (SERVER, {}, None),
        (SERVER, {"HTTPS_PROXY": PROXY}, PROXY),
        (SERVER, {"https_proxy": PROXY}, PROXY),
        (SERVER, {"HTTPS_PROXY": PROXY, "https_proxy": "http://other:1"}, PROXY),
        (SERVER, {"HTTP_PROXY": PROXY}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY}, PROXY),
        (SERVER, {"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_the_variable_of_the_scheme_names_the_proxy(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert find_proxy(url, environ) == proxy


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_direct"),
    [
        (SERVER, "*", True),
        (SERVER, "10.96.0.1", True),
        (SERVER, "10.96.0.1:443", True),
        (SERVER, "10.96.0.1:6443", False),
        (SERVER, "svc, 10.96.0.0/12 ,other", True),
        (SERVER, "10.0.0.0/16", False),
        (SERVER, "10.96.0.0/99", False),
        (SERVER, "96.0.1", False),
        (SERVER, "", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://[fd00::1]", "fd00::1", True),
        ("https://[fd00::1]", "[fd00::1]:443", True),
        ("https://[fd00::2]", "fd00::1", False),
        ("https://kubernetes.default.svc", "svc", True),
        ("https://kubernetes.default.svc", ".svc", True),
        ("https://kubernetes.default.svc", "*.svc", True),
        ("https://KUBERNETES.default.svc.", "kubernetes.default.SVC", True),
        ("https://api.example", ".api.example", False),
        ("https://myapi.example", "api.example", False),
        ("https://api.example:6443", "api.example:6443", True),
        ("https://api.example", "api.example:6443", False),
        ("https://api.example", "10.0.0.0/8", False),
    ],
)
def test_no_proxy_excludes_addresses_networks_and_domains(url: str, no_proxy: str, is_direct: bool) -> None:
    assert find_proxy(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == (None if is_direct else PROXY)


@pytest.mark.parametrize("no_proxy", ["", "127.0.0.0/8,api.example"], ids=["proxy", "the server is in NO_PROXY"])
async def test_requests_and_watches_take_the_same_way(
    no_proxy: str, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append((await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    configuration = Configuration(host="http://api.example:1")
    async with (
        await asyncio.start_server(answer, "127.0.0.1", unused_tcp_port),
        Api(configuration) as api,
        make_session(api.configuration) as watches,
    ):
        if no_proxy:
            assert (api.configuration.proxy, watches._default_proxy, watches.trust_env) == (None, None, False)
            return
        await api.get(POD, "ns", "a")
        async with watches.get("http://api.example:1/watch") as response:
            await response.read()

    assert connections == [
        "GET http://api.example:1/api/v1/namespaces/ns/pods/a HTTP/1.1",
        "GET http://api.example:1/watch HTTP/1.1",
    ]
