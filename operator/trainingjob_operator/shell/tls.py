"""What the operator proves itself with: certificates kept in a Secret or in a folder, in use without a restart.

The operator's own are kept in one Secret of its namespace: renewed when they are due, whoever of several operators is
first, and read again every minute. Certificates of somebody else (cert-manager) are files; they are read again too.
"""

import asyncio
import base64
import re
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from trainingjob_operator.core.manifests import Manifest, items, text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.certificates import Certificates, Pair, renew
from trainingjob_operator.shell.kinds import SECRET, WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.settings import Settings

REFRESH_SECONDS = 60.0
RETRY_SECONDS = 5.0
"""While there is no certificate at all, or the last look failed."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)

log = Log("tls")


@dataclass(frozen=True)
class Proof:
    """What a server shows, and what those who meet it must trust, in PEM."""

    serving: Pair
    bundle: str
    secret: str = field(default="", repr=False)
    """A private key that all operators of the installation have, and nobody else."""


class Source(Protocol):
    """Where the certificates come from."""

    async def read(self) -> Proof:
        """Return the certificates to use now.

        Raises `OSError` or `ValueError` where they cannot be used, `ClusterUnavailableError`, `ForbiddenError`,
        `MissingKindError` or `ConflictError` where they cannot be reached.
        """
        ...


class SecretSource:
    """Certificates of the operator's own, in a Secret."""

    def __init__(self, api: Api, settings: Settings, now: Callable[[], datetime]) -> None:
        """Keep them in the Secret that the settings name."""
        self._api = api
        self._namespace, self._name = settings.namespace, settings.ca_secret
        self._names = (settings.host, f"{settings.host}.cluster.local")
        self._now = now

    async def read(self) -> Proof:
        """Return what the Secret holds, renewed where it is due. Two operators at once end with the same."""
        secret = await self._api.get(SECRET, self._namespace, self._name)
        known = load(secret) if secret else None
        current = renew(known, self._names, self._now())
        if current is not known:
            await self._store(secret, current)
            log.info("certificates renewed", secret=self._name, serial=str(current.serving.x509.serial_number))
        return Proof(current.serving, current.bundle, current.ca.key)

    async def _store(self, secret: Manifest | None, certificates: Certificates) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in dump(certificates).items()}
        if secret is not None:
            await self._api.replace(SECRET, {**secret, "data": data})
            return
        metadata = {"name": self._name, "namespace": self._namespace}
        manifest = {"apiVersion": SECRET.api_version, "kind": SECRET.name, "metadata": metadata, "data": data}
        await self._api.create(SECRET, manifest, self._namespace)


class FolderSource:
    """Certificates that somebody else renews, as files tls.crt, tls.key and ca.crt."""

    def __init__(self, folder: Path) -> None:
        """Read them from a folder."""
        self._folder = folder

    async def read(self) -> Proof:
        """Return what the files hold."""
        certificate, key, bundle = ((self._folder / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt"))
        if not _CERTIFICATE.search(bundle):
            raise ValueError(f"{self._folder / 'ca.crt'} holds no certificate")
        return Proof(Pair(certificate, key), bundle, key)


class Tls:
    """The TLS context of all servers of the operator, kept fresh."""

    def __init__(self, source: Source) -> None:
        """Use certificates of a source."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ready = asyncio.Event()
        """Set as soon as there is a certificate to serve with."""
        self._source = source
        self._proof: Proof | None = None

    @property
    def bundle(self) -> str:
        """Return the CAs to trust, in PEM; empty before there are any."""
        return self._proof.bundle if self._proof else ""

    @property
    def secret(self) -> str:
        """Return what only operators of this installation know; empty before there is anything."""
        return self._proof.secret if self._proof else ""

    async def run(self) -> None:
        """Look again for ever."""
        while True:
            is_fresh = await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if is_fresh else RETRY_SECONDS)

    async def refresh(self) -> bool:
        """Take over what the source has now. Return whether that went well; else what is in use stays in use."""
        try:
            proof = await self._source.read()
            if proof != self._proof:
                use(self.context, proof.serving)
        except ConflictError:  # another operator renewed them just now
            return False
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot reach the certificates", error=str(error))
            return False
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            log.error("cannot use the certificates", error=str(error))
            return False
        self._proof = proof
        self.ready.set()
        return True


class WebhookTrust:
    """Makes the API server trust the webhook: puts the CAs into the webhook configuration that the chart made."""

    def __init__(self, api: Api, name: str, tls: Tls) -> None:
        """Keep one configuration's `caBundle` equal to what TLS wants to be trusted by."""
        self._api = api
        self._name = name
        self._tls = tls
        self._trouble = ""

    async def run(self) -> None:
        """Look again for ever: somebody may have installed the configuration anew."""
        await self._tls.ready.wait()
        while True:
            is_trusted = await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if is_trusted else RETRY_SECONDS)

    async def refresh(self) -> bool:
        """Write the CAs where others stand. Return whether they stand there now."""
        try:
            await self._write(base64.b64encode(self._tls.bundle.encode()).decode())
            trouble = ""
        except NotFoundError:
            trouble = "there is none"
        except (ClusterUnavailableError, ForbiddenError, MissingKindError, ConflictError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:  # it may last: once is enough
            log.warning("cannot write the webhook configuration", name=self._name, error=trouble)
        self._trouble = trouble
        return not trouble

    async def _write(self, wanted: str) -> None:
        configuration = await self._api.get(WEBHOOK_CONFIGURATION, "", self._name)
        if configuration is None:
            raise NotFoundError(self._name)
        changes: list[Manifest] = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted}
            for index, webhook in enumerate(items(configuration, "webhooks"))
            if text(webhook, "clientConfig", "caBundle") != wanted
        ]
        if changes:
            version = configuration["metadata"]["resourceVersion"]
            fence = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            await self._api.patch(WEBHOOK_CONFIGURATION, "", self._name, [fence, *changes])
            log.info("the API server trusts the webhook", name=self._name)


def dump(certificates: Certificates) -> dict[str, str]:
    """Return certificates as the keys of a Secret. `ca.crt` is what others trust; its first one signs."""
    pairs = {"ca": certificates.ca, "tls": certificates.serving}
    if certificates.next_ca:
        pairs["next-ca"] = certificates.next_ca
    data = {f"{name}.crt": pair.certificate for name, pair in pairs.items()}
    data |= {f"{name}.key": pair.key for name, pair in pairs.items()}
    return data | {"ca.crt": certificates.bundle}


def load(secret: Manifest) -> Certificates | None:  # None: the Secret holds no certificates
    """Return the certificates of a Secret. Those that cannot be read are told apart later, by `renew`."""
    try:
        data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
    except ValueError:
        return None
    pems = _CERTIFICATE.findall(data.get("ca.crt", ""))
    if not pems:
        return None
    ca = Pair(pems[0], data.get("ca.key", ""))
    next_pem = data.get("next-ca.crt", "")
    return Certificates(
        ca=ca,
        serving=Pair(data.get("tls.crt", ""), data.get("tls.key", "")),
        next_ca=Pair(next_pem, data.get("next-ca.key", "")) if next_pem else None,
        old_cas=tuple(pem for pem in pems[1:] if pem.strip() != next_pem.strip()),
    )


def use(context: ssl.SSLContext, serving: Pair) -> None:
    """Show a certificate to whoever connects from now on. The key touches the disk for that moment only.

    Raises:
        ssl.SSLError: the two do not belong together, or are none.
    """
    with tempfile.NamedTemporaryFile("w") as file:  # only its owner may read it
        file.write(f"{serving.key}\n{serving.certificate}")
        file.flush()
        context.load_cert_chain(file.name)
