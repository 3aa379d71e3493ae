"""TLS certificates of the operator's servers, from a Secret or a folder, reloaded without a restart.

The operator stores the certificates that it issues in a Secret of its namespace. Any operator replica renews due
certificates, and every replica reads the Secret again each minute. External certificates, for example of cert-manager,
are files that are also read again each minute.
"""

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from trainingjob_operator.core.manifests import Manifest, get_text, iter_items
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.certificates import CertificatePair, Certificates, renew
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.kinds import SECRET, WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.settings import Settings

REFRESH_SECONDS = 60.0
RETRY_SECONDS = 5.0
"""Retry interval after a failed refresh."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)

log = Log("tls")


@dataclass(frozen=True)
class TlsMaterial:
    """Serving certificate of the servers, and the CAs that clients must trust, in PEM."""

    serving: CertificatePair
    bundle: str
    secret: str = field(default="", repr=False)
    """Private key that only the operators of this installation share."""


class CertificateSource(Protocol):
    """Source of certificates."""

    async def read(self) -> TlsMaterial:
        """Return the current certificates.

        Raises `OSError` or `ValueError` if they are invalid, and `ClusterUnavailableError`, `ForbiddenError`,
        `MissingKindError` or `ConflictError` if they cannot be read or renewed.
        """
        ...


class SecretSource:
    """The operator's own certificates, in a Secret."""

    def __init__(self, api: Api, settings: Settings, now: Callable[[], datetime]) -> None:
        self._api = api
        self._namespace, self._name = settings.namespace, settings.ca_secret
        self._names = dns_names(settings.host)
        self._webhook_names = dns_names(settings.webhook_host) if settings.webhook_enabled else ()
        self._now = now

    async def read(self) -> TlsMaterial:
        """Read the Secret and renew due certificates. If two operators renew at once, one gets a `ConflictError`."""
        secret = await self._api.get(SECRET, self._namespace, self._name)
        stored = from_secret(secret) if secret else None
        current = renew(stored, self._names, self._now(), self._webhook_names)
        if current is not stored:
            await self._store(secret, current)
            log.info("certificates renewed", secret=self._name, serial=str(current.serving.x509.serial_number))
        return TlsMaterial(current.serving, current.bundle, current.ca.key)

    async def _store(self, secret: Manifest | None, certificates: Certificates) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in to_secret_data(certificates).items()}
        if secret is not None:
            await self._api.replace(SECRET, {**secret, "data": data})
            return
        metadata = {"name": self._name, "namespace": self._namespace}
        manifest = {"apiVersion": SECRET.api_version, "kind": SECRET.name, "metadata": metadata, "data": data}
        await self._api.create(SECRET, manifest, self._namespace)


class FolderSource:
    """Externally renewed certificates, as files tls.crt, tls.key and ca.crt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self) -> TlsMaterial:
        """Read the certificates from the files."""
        certificate, key, bundle = ((self._folder / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt"))
        if not _CERTIFICATE.search(bundle):
            raise ValueError(f"{self._folder / 'ca.crt'} contains no certificate")
        return TlsMaterial(CertificatePair(certificate, key), bundle, key)


class Tls:
    """TLS context of all servers of the operator, with periodically refreshed certificates."""

    def __init__(self, source: CertificateSource) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ready = asyncio.Event()
        """Set once a serving certificate is loaded."""
        self._source = source
        self._material: TlsMaterial | None = None

    @property
    def bundle(self) -> str:
        """Return the trusted CAs in PEM; empty before the first load."""
        return self._material.bundle if self._material else ""

    @property
    def secret(self) -> str:
        """Return the secret that only the operators of this installation share; empty before the first load."""
        return self._material.secret if self._material else ""

    async def run(self) -> None:
        """Refresh the certificates periodically. Never returns."""
        while True:
            is_fresh = await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if is_fresh else RETRY_SECONDS)

    async def refresh(self) -> bool:
        """Load the current certificates of the source. Return success; a failure keeps the certificates in use."""
        try:
            material = await self._source.read()
            if material != self._material:
                load_serving_certificate(self.context, material.serving)
        except ConflictError:  # another operator has just renewed them
            return False
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot reach the certificates", error=str(error))
            return False
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            log.error("cannot use the certificates", error=str(error))
            return False
        self._material = material
        self.ready.set()
        return True


class CaBundleInjector:
    """Writes the operator's CAs into the webhook configuration of the Helm chart, for the API server to trust."""

    def __init__(self, api: Api, name: str, tls: Tls) -> None:
        """Keep the `caBundle` of one webhook configuration equal to the bundle of `tls`."""
        self._api = api
        self._name = name
        self._tls = tls
        self._last_problem = ""

    async def run(self) -> None:
        """Refresh the configuration periodically, since it may be reinstalled. Never returns."""
        await self._tls.ready.wait()
        while True:
            is_trusted = await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if is_trusted else RETRY_SECONDS)

    async def refresh(self) -> bool:
        """Write the CAs where they differ. Return whether the configuration now holds them."""
        try:
            await self._write(base64.b64encode(self._tls.bundle.encode()).decode())
            problem = ""
        except NotFoundError:
            problem = "there is none"
        except (ClusterUnavailableError, ForbiddenError, MissingKindError, ConflictError) as error:
            problem = str(error)
        if problem and problem != self._last_problem:  # log a lasting problem only once
            log.warning("cannot write the webhook configuration", name=self._name, error=problem)
        self._last_problem = problem
        return not problem

    async def _write(self, ca_bundle: str) -> None:
        configuration = await self._api.get(WEBHOOK_CONFIGURATION, "", self._name)
        if configuration is None:
            raise NotFoundError(self._name)
        changes: list[Manifest] = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": ca_bundle}
            for index, webhook in enumerate(iter_items(configuration, "webhooks"))
            if get_text(webhook, "clientConfig", "caBundle") != ca_bundle
        ]
        if changes:
            version = configuration["metadata"]["resourceVersion"]
            version_test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            await self._api.patch(WEBHOOK_CONFIGURATION, "", self._name, [version_test, *changes])
            log.info("the API server trusts the webhook", name=self._name)


def dns_names(host: str) -> tuple[str, str]:
    """Return the names of a serving certificate for a Service, without and with the cluster's domain."""
    return host, f"{host}.cluster.local"


def to_secret_data(certificates: Certificates) -> dict[str, str]:
    """Convert certificates to the data of a Secret. `ca.crt` is the trust bundle; its first certificate signs.

    The chart mounts `webhook.crt`, `webhook.key` and `ca.crt` into the webhook's pods, and nothing else.
    """
    pairs = {"ca": certificates.ca, "tls": certificates.serving}
    if certificates.webhook:
        pairs["webhook"] = certificates.webhook
    if certificates.next_ca:
        pairs["next-ca"] = certificates.next_ca
    data = {f"{name}.crt": pair.certificate for name, pair in pairs.items()}
    data |= {f"{name}.key": pair.key for name, pair in pairs.items()}
    return data | {"ca.crt": certificates.bundle}


def from_secret(secret: Manifest) -> Certificates | None:  # None: no certificates
    """Parse the certificates of a Secret. `renew` later replaces invalid ones."""
    try:
        data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
    except ValueError:
        return None
    pems = _CERTIFICATE.findall(data.get("ca.crt", ""))
    if not pems:
        return None
    ca = CertificatePair(pems[0], data.get("ca.key", ""))
    next_pem, webhook_pem = data.get("next-ca.crt", ""), data.get("webhook.crt", "")
    return Certificates(
        ca=ca,
        serving=CertificatePair(data.get("tls.crt", ""), data.get("tls.key", "")),
        webhook=CertificatePair(webhook_pem, data.get("webhook.key", "")) if webhook_pem else None,
        next_ca=CertificatePair(next_pem, data.get("next-ca.key", "")) if next_pem else None,
        old_cas=tuple(pem for pem in pems[1:] if pem.strip() != next_pem.strip()),
    )


def load_serving_certificate(context: ssl.SSLContext, serving: CertificatePair) -> None:
    """Use a certificate for new connections. The key passes through a file in memory, never through a disk.

    Raises:
        ssl.SSLError: certificate or key is invalid, or they do not match.
    """
    with os.fdopen(os.memfd_create("serving-certificate"), "w") as file:
        file.write(f"{serving.key}\n{serving.certificate}")
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
