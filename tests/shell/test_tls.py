"""Certificates are kept in a Secret or read from files, and are in use without a restart."""

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from trainingjob_operator.shell.certificates import CA_LIFETIME, CA_PUBLICATION_LEAD, Certificates, renew
from trainingjob_operator.shell.kinds import SECRET, WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.tls import (
    CaBundleInjector,
    FolderSource,
    SecretSource,
    Tls,
    from_secret,
    to_secret_data,
)

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
SETTINGS = Settings(trainer_image="t", namespace="ml")
HOST = "trainingjob-operator.ml.svc"


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(api: Any, clock: Clock) -> SecretSource:
    return SecretSource(api, SETTINGS, clock)


@pytest.fixture
async def shown():
    """Return a function that connects to a TLS context and returns the certificate that it shows."""
    servers = []

    async def connect(tls: Tls) -> bytes:
        servers.append(await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls.context))
        port = servers[-1].sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cadata=tls.bundle)
        trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return shown

    yield connect
    for server in servers:
        server.close()


def der(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_the_first_look_makes_them_and_the_next_finds_them(source: SecretSource, api_server: Any) -> None:
    first = await source.read()
    version = api_server.version

    assert await source.read() == first
    assert api_server.version == version
    assert from_secret(api_server.find(SECRET, "ml", SETTINGS.ca_secret)).bundle == first.bundle


async def test_two_operators_at_once_end_with_the_same(api: Any, api_server: Any, clock: Clock) -> None:
    sources = [SecretSource(api, SETTINGS, clock) for _ in range(2)]
    tls = [Tls(source) for source in sources]

    await asyncio.gather(*(each.refresh() for each in tls))
    await asyncio.gather(*(each.refresh() for each in tls))

    assert tls[0].bundle == tls[1].bundle != ""


STAGES = {
    "fresh": [],
    "a new CA published": [CA_LIFETIME],
    "the new CA in use": [CA_LIFETIME * 9 / 10, CA_PUBLICATION_LEAD],
}


@pytest.mark.parametrize("passes", STAGES.values(), ids=STAGES.keys())
def test_secret_contains_the_stored_certificates(passes: list[timedelta]) -> None:
    known: Certificates | None = None
    now = START
    for after in [timedelta(0), *passes]:
        now += after * 0.9 if after == CA_LIFETIME else after
        known = renew(known, (HOST,), now, ("webhook.ml.svc",))
    assert known is not None

    data = {key: base64.b64encode(value.encode()).decode() for key, value in to_secret_data(known).items()}
    assert from_secret({"data": data}) == known


DAMAGED = {
    "empty": {},
    "no data": None,
    "not base64": {"ca.crt": "%"},
    "not text": {"ca.crt": base64.b64encode(b"\xff\xfe").decode()},
    "no certificate in it": {"ca.crt": base64.b64encode(b"hello").decode()},
    "a certificate that is none": {
        "ca.crt": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()
    },
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
async def test_damaged_secret_is_rewritten(data: Any, source: SecretSource, api_server: Any) -> None:
    api_server.put(SECRET, {"metadata": {"name": SETTINGS.ca_secret, "namespace": "ml"}, "data": data})

    proof = await source.read()

    assert proof == await source.read()
    assert (
        proof.serving.certificate
        in base64.b64decode(api_server.find(SECRET, "ml", SETTINGS.ca_secret)["data"]["tls.crt"]).decode()
    )


async def test_a_renewed_certificate_is_shown_without_a_restart(source: SecretSource, clock: Clock, shown: Any) -> None:
    tls = Tls(source)
    assert not tls.ready.is_set()

    assert await tls.refresh()
    first = await shown(tls)
    clock.now += CA_LIFETIME * 0.9
    assert await tls.refresh()
    second = await shown(tls)

    assert tls.ready.is_set()
    assert first != second


async def test_without_an_api_server_the_last_certificate_stays(
    source: SecretSource, api_server: Any, shown: Any
) -> None:
    tls = Tls(source)
    await tls.refresh()
    before = await shown(tls)

    api_server.fault = lambda _: web.Response(status=503)
    assert not await tls.refresh()

    assert await shown(tls) == before


async def test_all_operators_have_one_secret_which_a_new_serving_certificate_does_not_change(
    api: Any, source: SecretSource, clock: Clock
) -> None:
    assert Tls(source).secret == ""
    operators = [Tls(source), Tls(SecretSource(api, SETTINGS, clock))]
    for tls in operators:
        await tls.refresh()
    served = (await source.read()).serving
    secret = operators[0].secret
    clock.now += timedelta(days=80)
    proof = await source.read()

    assert secret == operators[1].secret == proof.secret != ""
    assert proof.serving != served
    assert secret not in repr(proof).replace(repr(proof.serving), "")


async def test_files_are_read_again(tmp_path: Any, shown: Any, caplog: pytest.LogCaptureFixture) -> None:
    tls = Tls(FolderSource(tmp_path))
    assert not await tls.refresh()
    assert not tls.ready.is_set()

    for now in (START, START + timedelta(days=1)):
        made = renew(None, (HOST,), now)
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (tmp_path / name).write_text(to_secret_data(made)[name])
        assert await tls.refresh()
        assert await shown(tls) == der(made.serving.certificate)
        assert tls.secret == made.serving.key

    (tmp_path / "tls.key").write_text(renew(None, (HOST,), START).serving.key)
    assert not await tls.refresh()
    (tmp_path / "ca.crt").write_text("")
    assert not await tls.refresh()
    assert await shown(tls) == der(made.serving.certificate)
    assert "PRIVATE" not in caplog.text


@pytest.fixture
async def trust(api: Any, source: SecretSource) -> CaBundleInjector:
    tls = Tls(source)
    await tls.refresh()
    return CaBundleInjector(api, SETTINGS.webhook_configuration, tls)


def configuration(*bundles: str) -> dict[str, Any]:
    webhooks = [
        {"name": str(number), "clientConfig": {"caBundle": bundle} if bundle else {}}
        for number, bundle in enumerate(bundles)
    ]
    return {"metadata": {"name": SETTINGS.webhook_configuration}, "webhooks": webhooks}


def bundles_in(api_server: Any) -> set[str]:
    found = api_server.find(WEBHOOK_CONFIGURATION, "", SETTINGS.webhook_configuration)
    return {webhook["clientConfig"]["caBundle"] for webhook in found["webhooks"]}


async def test_bundle_is_written_into_every_webhook(trust: CaBundleInjector, api_server: Any) -> None:
    api_server.put(WEBHOOK_CONFIGURATION, configuration("", "b2xk"))

    assert await trust.refresh()
    version = api_server.version
    assert await trust.refresh()

    assert bundles_in(api_server) == {base64.b64encode(trust._tls.bundle.encode()).decode()}
    assert api_server.version == version, "nothing is written twice"


async def test_without_a_configuration_nothing_breaks(
    trust: CaBundleInjector, api_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await trust.refresh()
    assert not await trust.refresh()
    assert caplog.messages.count("cannot write the webhook configuration") == 1

    api_server.put(WEBHOOK_CONFIGURATION, configuration(""))
    assert await trust.refresh()


async def test_a_configuration_that_changed_meanwhile_is_left_for_the_next_look(
    trust: CaBundleInjector, api_server: Any
) -> None:
    api_server.put(WEBHOOK_CONFIGURATION, configuration("b2xk"))

    def change(request: web.Request) -> None:
        if request.method == "PATCH":
            api_server.fault = lambda _: None
            api_server.put(WEBHOOK_CONFIGURATION, configuration("c29tZWJvZHk="))

    api_server.fault = change
    assert not await trust.refresh()
    assert bundles_in(api_server) == {"c29tZWJvZHk="}
