"""The agent's side of the rendezvous, against real servers on loopback."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainingjob_agent import rendezvous as rendezvous_module
from trainingjob_agent.rendezvous import Rendezvous, RendezvousError
from trainingjob_api.protocol import REPORT_PATH, Answer, Directive, HostReport

REPORT = HostReport(
    job_uid="job", pod="pod", pod_uid="uid", slice=0, host=0, address="127.0.0.1", instance="a", port=1, standby=True
)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def renew(token: Path) -> None:
    token.write_text("second")


def serve(handle: Callable[[web.Request], Awaitable[web.Response]]) -> TestServer:
    application = web.Application()
    application.router.add_post(REPORT_PATH, handle)
    return TestServer(application)


def url(server: TestServer, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}"


async def test_a_report_arrives_and_its_answer_comes_back(token: Path) -> None:
    received = []

    async def handle(request: web.Request) -> web.Response:
        received.append((request.headers["Authorization"], HostReport.model_validate_json(await request.read())))
        return web.Response(text='{"directive": "wait", "reportAgainSeconds": 2.5}')

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        answer = await rendezvous.post(REPORT)
        renew(token)
        await rendezvous.post(REPORT)

    assert answer == Answer(directive=Directive.WAIT, report_again_seconds=2.5)
    assert received == [("Bearer first", REPORT), ("Bearer second", REPORT)]


async def test_agent_leaves_an_operator_that_rejects_its_reports_for_long(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Service routes only new connections to another operator."""
    monkeypatch.setattr(rendezvous_module, "RECONNECT_SECONDS", 0.2)
    status, peers = [503], []

    async def handle(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername"))  # type: ignore[union-attr]
        return web.Response(status=status[0], text='{"directive": "wait"}')

    async def report(rendezvous: Rendezvous) -> None:
        with suppress(RendezvousError):
            await rendezvous.post(REPORT)

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        for _ in range(3):
            await report(rendezvous)
        assert len(set(peers)) == 1, "each connection costs the operator a handshake"
        await asyncio.sleep(2 * rendezvous_module.RECONNECT_SECONDS)
        await report(rendezvous)
        await report(rendezvous)
        assert len(set(peers)) == 2

        status[0] = 200
        await report(rendezvous)
        await asyncio.sleep(2 * rendezvous_module.RECONNECT_SECONDS)
        status[0] = 503
        await report(rendezvous)
        await report(rendezvous)
    assert len(set(peers)) == 2, "the time counts from the first rejection after an answer"


async def test_an_unchanged_answer_is_not_sent_again(token: Path) -> None:
    asked = []
    texts = {"1": '{"directive": "wait"}', "2": '{"directive": "finish"}'}
    current = ["1"]

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.headers.get("If-None-Match"))
        tag = current[0]
        if asked[-1] == tag:
            return web.Response(status=304, headers={"ETag": tag})
        return web.Response(text=texts[tag], headers={"ETag": tag})

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        answers = [await rendezvous.post(REPORT), await rendezvous.post(REPORT)]
        current[0] = "2"
        answers.append(await rendezvous.post(REPORT))

    assert [answer.directive for answer in answers] == [Directive.WAIT, Directive.WAIT, Directive.FINISH]
    assert asked == [None, "1", "1"]


ANSWERS: dict[str, tuple[int, str, str]] = {
    "unchanged without a former answer": (304, "", "refused with status 304"),
    "refused": (403, "pod uid-1 is not of this job", "refused with status 403: pod uid-1 is not of this job"),
    "sent elsewhere": (302, "", "refused with status 302"),
    "a riddle": (200, '{"directive": "dance"}', "an answer that this agent does not understand"),
    "no JSON": (200, "hello", "an answer that this agent does not understand"),
}


@pytest.mark.parametrize(("status", "text", "words"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_missing_answer_is_an_error_with_a_message(token: Path, status: int, text: str, words: str) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers={"Location": "/elsewhere"})

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        with pytest.raises(RendezvousError, match=words):
            await rendezvous.post(REPORT)


async def test_a_newer_operator_is_understood(token: Path) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text='{"directive": "wait", "mood": "sunny"}')

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        assert (await rendezvous.post(REPORT)).directive is Directive.WAIT


async def test_connection_refused(token: Path, unused_tcp_port: int) -> None:
    async with Rendezvous(f"http://127.0.0.1:{unused_tcp_port}", token, None) as rendezvous:
        with pytest.raises(RendezvousError, match="ClientConnectorError"):
            await rendezvous.post(REPORT)


async def test_an_operator_that_hangs(token: Path, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous_module, "TIMEOUT_SECONDS", 0.05)
    released = asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    async with serve(handle) as server, Rendezvous(url(server), token, None) as rendezvous:
        with pytest.raises(RendezvousError, match="no answer within"):
            await rendezvous.post(REPORT)
        released.set()


async def test_a_token_that_is_not_there_is_no_crash(tmp_path: Path) -> None:
    async with Rendezvous("http://127.0.0.1:1", tmp_path / "none", None) as rendezvous:
        with pytest.raises(RendezvousError, match="FileNotFoundError"):
            await rendezvous.post(REPORT)


class Authority:
    """A certificate authority and a server that it vouches for."""

    def __init__(self, folder: Path, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._sign(self.name, self.key.public_key(), constraints)
        self._folder = folder

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self.key, hashes.SHA256())

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server_context(self) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._sign(subject, key.public_key(), names)
        chain = self._folder / "server.pem"
        no_password = serialization.NoEncryption()
        chain.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


async def test_trust_follows_the_file_with_the_authority(token: Path, tmp_path: Path) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text='{"directive": "wait"}')

    right, wrong = Authority(tmp_path, "right"), Authority(tmp_path, "wrong")
    ca = tmp_path / "ca.crt"
    server = serve(handle)
    await server.start_server(ssl=right.server_context())
    async with server, Rendezvous(url(server, "https"), token, ca) as rendezvous:
        with pytest.raises(RendezvousError, match="FileNotFoundError"):
            await rendezvous.post(REPORT)
        ca.write_bytes(wrong.pem())
        with pytest.raises(RendezvousError, match="certificate verify failed"):
            await rendezvous.post(REPORT)
        ca.write_bytes(wrong.pem() + right.pem())
        assert (await rendezvous.post(REPORT)).directive is Directive.WAIT
        ca.write_bytes(wrong.pem())
        with pytest.raises(RendezvousError, match="certificate verify failed"):
            await rendezvous.post(REPORT)
