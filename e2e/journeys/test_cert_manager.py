"""Certificates of a real cert-manager: admission, metrics over TLS, and renewals without a restart."""

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from e2e.cert_manager.issuing import request_renewal, run_cert_manager
from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError
from e2e.product import CHART, RELEASE, SYSTEM_NAMESPACE, Manifest, Product, load_example, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

CERTIFICATE = "trainingjob-operator-webhook"
WEBHOOK_PORT = 9443
METRICS_PORT = 8444
SCRAPER = {"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}
VALUES = {
    "certManager": {"enabled": True},
    "metrics": {"tls": {"enabled": True}, "authentication": {"enabled": True, "scrapers": [SCRAPER]}},
}
INVALID = {"parallelism": {"ici": {"fsdp": 3}}}
"""A mesh that only the webhook rejects: the planner knows the devices of a slice."""
INJECTION_SECONDS = 60
RENEWAL_SECONDS = 180
"""The kubelet updates mounted Secrets within about 90 s, and the pods look for a new certificate once a minute."""


@pytest.fixture(scope="module")
def certified(cluster: Cluster, product: Product) -> Iterator[Product]:
    """The operator with certificates of cert-manager, and with metrics for one ServiceAccount."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"cert-manager is not installed on the {cluster.name} cluster")
    with run_cert_manager(cluster):
        values = [flag for key, value in VALUES.items() for flag in ("--set-json", f"{key}={json.dumps(value)}")]
        cluster.helm(
            *("upgrade", RELEASE, str(CHART), "--namespace", SYSTEM_NAMESPACE, "--reset-then-reuse-values"),
            *("--wait", "--timeout=3m", *values),
        )
        cluster.kubectl("create", "serviceaccount", SCRAPER["name"], "-n", SCRAPER["namespace"])
        try:
            wait_until("the replaced pods to end", product.is_rolled_out, timeout=60)
            wait_until("a webhook with an injected CA", lambda: try_apply(product, "demo") or None, INJECTION_SECONDS)
            yield product
        finally:
            cluster.kubectl("delete", "serviceaccount", SCRAPER["name"], "-n", SCRAPER["namespace"])
            # Users must do the same: Helm does not replace a Secret that another program made.
            for kind in ("certificate", "secret"):  # cert-manager would make the Secret of a Certificate again
                cluster.kubectl("delete", kind, "trainingjob-operator-ca", "-n", SYSTEM_NAMESPACE)
            product.install()


def try_apply(product: Product, name: str, **changes: object) -> str:
    """Return the answer to an apply of an example that stores nothing. Raises `ClusterError` if it is rejected."""
    manifest = load_example(name, **changes)
    return product.cluster.kubectl("apply", "--dry-run=server", "--filename=-", stdin=json.dumps(manifest))


def webhook_addresses(product: Product) -> dict[str, str]:
    """Return the address of each pod of the webhook, by its UID."""
    return {pod["metadata"]["uid"]: pod["status"]["podIP"] for pod in product.webhook_pods()}


def read_ca(product: Product) -> str:
    """Return the CA that cert-manager wrote next to the certificate of the webhook."""
    secret = product.cluster.kubectl("get", "secret", f"{CERTIFICATE}-tls", "-n", SYSTEM_NAMESPACE, "-o", "json")
    return base64.b64decode(json.loads(secret)["data"]["ca.crt"]).decode()


def read_certificate(address: str, ca: str) -> object:
    """Return the serial number of the certificate that a pod of the webhook shows, which the CA must have signed."""
    context = ssl.create_default_context(cadata=ca)
    name = f"{CERTIFICATE}.{SYSTEM_NAMESPACE}.svc"
    with (
        socket.create_connection((address, WEBHOOK_PORT), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname=name) as secured,
    ):
        return (secured.getpeercert() or {})["serialNumber"]


def scrape(address: str, ca: str, token: str) -> tuple[int, str]:
    """Return status and body of `/metrics`. The certificate names the Service, and not the address of the pod."""
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = False
    request = urllib.request.Request(f"https://{address}:{METRICS_PORT}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310  # a pod of ours
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def count_restarts(pods: list[Manifest]) -> int:
    return sum(status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"])


def test_the_webhook_serves_renewed_certificates_without_a_restart(certified: Product) -> None:
    cluster, ca, addresses = certified.cluster, read_ca(certified), webhook_addresses(certified)
    assert isinstance(cluster, LocalCluster)
    before = {uid: read_certificate(address, ca) for uid, address in addresses.items()}
    with pytest.raises(ClusterError, match=r"spec\.parallelism\.ici"):
        try_apply(certified, "demo", **INVALID)

    request_renewal(cluster, SYSTEM_NAMESPACE, CERTIFICATE)

    def are_renewed() -> bool | None:
        shown = {uid: read_certificate(address, ca) for uid, address in addresses.items()}
        return all(shown[uid] != before[uid] for uid in before) or None

    wait_until("renewed certificates", are_renewed, RENEWAL_SECONDS)
    assert webhook_addresses(certified) == addresses
    assert count_restarts([*certified.webhook_pods(), *certified.operator_pods()]) == 0
    assert "created" in try_apply(certified, "demo")
    with pytest.raises(ClusterError, match=r"spec\.parallelism\.ici"):
        try_apply(certified, "demo", **INVALID)


def test_metrics_are_served_over_tls_to_the_scraper_alone(certified: Product) -> None:
    cluster, ca = certified.cluster, read_ca(certified)
    cluster.kubectl("create", "serviceaccount", "stranger", "-n", "default")
    try:
        tokens = {name: cluster.kubectl("create", "token", name, "-n", "default") for name in ("scraper", "stranger")}
        pods = [*certified.operator_pods(), *certified.webhook_pods()]
        for address in (pod["status"]["podIP"] for pod in pods):
            status, metrics = scrape(address, ca, tokens["scraper"].strip())
            assert (status, "trainingjob_" in metrics) == (200, True)
            assert scrape(address, ca, tokens["stranger"].strip())[0] == 403
            assert scrape(address, ca, "")[0] == 401
    finally:
        cluster.kubectl("delete", "serviceaccount", "stranger", "-n", "default")
