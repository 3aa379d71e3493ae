"""Metrics over TLS, and only for scrapers with the right to read them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from trainingjob_operator.shell import scraper_access
from trainingjob_operator.shell.certificates import renew
from trainingjob_operator.shell.check_pool import FairQueue
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app, serving_probes
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.reviews import MAX_TOKEN
from trainingjob_operator.shell.scraper_access import Access, ScraperAccess
from trainingjob_operator.shell.tls import FolderSource, Tls, to_secret_data

HOST = "trainingjob-operator.ml.svc"
USER = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}


class Scraper:
    """A client of one process that serves its metrics over TLS."""

    def __init__(self, session: aiohttp.ClientSession, port: int, access: ScraperAccess) -> None:
        self._session, self._port, self.access = session, port, access

    async def scrape(self, authorization: str = "Bearer good") -> tuple[int, str]:
        headers = {"Authorization": authorization} if authorization else {}
        url = f"https://127.0.0.1:{self._port}/metrics"
        async with self._session.get(url, headers=headers, server_hostname=HOST) as response:
            return response.status, await response.text()


@pytest.fixture
async def scraper(api: Any, tmp_path: Path, unused_tcp_port_factory: Any) -> AsyncIterator[Scraper]:
    made = to_secret_data(renew(None, (HOST,), datetime.now(UTC)))
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text(made[name])
    tls = Tls(FolderSource(tmp_path))
    assert await tls.refresh()
    ports = ListenPorts(0, 0, unused_tcp_port_factory(), unused_tcp_port_factory())
    access = ScraperAccess(api)
    health = health_app(lambda: "", lambda: "")
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=tls.bundle))
    async with (
        serving_probes(health, MetricsEndpoint(CollectorRegistry(), access), ports, tls.context),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        for path, status in ("/healthz", HTTPStatus.OK), ("/metrics", HTTPStatus.NOT_FOUND):
            async with session.get(f"http://127.0.0.1:{ports.metrics}{path}") as response:
                assert response.status == status, "plain HTTP has the probes alone"
        yield Scraper(session, ports.metrics_tls or 0, access)


def answer_reviews(api_server: Any, *, is_authenticated: bool = True, is_allowed: bool = True) -> list[Any]:
    """Let the API server know the token `good`. Return the list of access reviews that it answers."""
    asked: list[Any] = []
    api_server.reviews["tokenreviews"] = lambda spec: {
        "authenticated": is_authenticated and spec == {"token": "good"},
        "user": USER,
    }
    api_server.reviews["subjectaccessreviews"] = lambda spec: asked.append(spec) or {"allowed": is_allowed}
    return asked


async def test_scraper_with_the_right_reads_the_metrics(scraper: Scraper, api_server: Any) -> None:
    asked = answer_reviews(api_server)

    assert (await scraper.scrape())[0] == HTTPStatus.OK
    assert asked == [
        {
            "user": USER["username"],
            "uid": "u",
            "groups": ["g"],
            "extra": {"k": ["v"]},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }
    ]


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        pytest.param("", "a bearer token is needed", id="none"),
        pytest.param("Basic good", "a bearer token is needed", id="another scheme"),
        pytest.param("Bearer bad", "the token is not valid", id="unknown to the API server"),
    ],
)
async def test_scraper_without_a_valid_token_is_rejected(
    authorization: str, words: str, scraper: Scraper, api_server: Any
) -> None:
    asked = answer_reviews(api_server)

    status, text = await scraper.scrape(authorization)

    assert (status, asked) == (HTTPStatus.UNAUTHORIZED, [])
    assert words in text


async def test_token_of_any_length_costs_no_review(scraper: Scraper, api_server: Any) -> None:
    request: Any = type("Request", (), {"headers": {"Authorization": f"Bearer {'x' * (MAX_TOKEN + 1)}"}})

    with pytest.raises(web.HTTPUnauthorized):
        await scraper.access.require(request)
    assert api_server.requests == []


async def test_user_without_the_right_learns_its_name(scraper: Scraper, api_server: Any) -> None:
    answer_reviews(api_server, is_allowed=False)

    status, text = await scraper.scrape()

    assert status == HTTPStatus.FORBIDDEN
    assert "the verb `get` on the nonResourceURL `/metrics`" in text


@pytest.mark.parametrize("resource", ["tokenreviews", "subjectaccessreviews"])
async def test_no_scraper_has_access_without_an_answer(resource: str, scraper: Scraper, api_server: Any) -> None:
    answer_reviews(api_server)
    api_server.fault = lambda request: web.Response(status=500, text="good") if resource in request.path else None
    status, text = await scraper.scrape()
    assert (status, "good" in text) == (HTTPStatus.SERVICE_UNAVAILABLE, False)

    api_server.fault = lambda _: None
    assert (await scraper.scrape())[0] == HTTPStatus.OK, "a failure is not cached"


async def test_results_are_cached_and_expire(scraper: Scraper, api_server: Any) -> None:
    answer_reviews(api_server)
    for token in ("good", "good", "bad", "bad"):
        await scraper.scrape(f"Bearer {token}")
    assert len(api_server.requests) == 3, "two reviews of the one, and one of the other"

    answer_reviews(api_server, is_allowed=False)
    accepted = scraper.access._cache._accepted
    for digest, (until, result) in tuple(accepted.items()):
        accepted[digest] = (until - scraper_access.LIMITS.accepted_seconds, result)
    assert (await scraper.scrape())[0] == HTTPStatus.FORBIDDEN


async def test_unknown_tokens_beyond_the_queue_are_rejected_temporarily(
    scraper: Scraper, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_reviews(api_server)
    assert (await scraper.scrape())[0] == HTTPStatus.OK
    monkeypatch.setattr(scraper.access._cache, "_review_queue", FairQueue(max_waiting=0, at_once=0))

    assert (await scraper.scrape("Bearer bad"))[0] == HTTPStatus.TOO_MANY_REQUESTS
    assert (await scraper.scrape())[0] == HTTPStatus.OK, "a scraper that is known does not queue"
    assert api_server.requests[-1].endswith("subjectaccessreviews")


async def test_review_that_hangs_delays_no_other_request(
    scraper: Scraper, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_reviews(api_server)
    review, asked, answered = scraper.access._review, asyncio.Event(), asyncio.Event()

    async def hang(token: str) -> Access:
        asked.set()
        await answered.wait()
        return await review(token)

    monkeypatch.setattr(scraper.access, "_review", hang)
    scraping = asyncio.create_task(scraper.scrape())
    await asked.wait()
    assert (await scraper.scrape(""))[0] == HTTPStatus.UNAUTHORIZED
    assert not scraping.done()
    answered.set()
    assert (await scraping)[0] == HTTPStatus.OK
