"""cert-manager on the local cluster, for the journey that asks for it: real certificates, and real renewals.

The controller and the CA injector are built once per machine from the Go module in `tools/`. They run as processes of
this machine, next to the control plane. Release 1.11 is the last one whose programs are part of its Go module: since
1.12 they are modules without releases, which no module proxy serves. Its webhook only checks cert-manager's objects,
which the chart of the operator renders, so that it is left out.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.cluster.go_tools import GoTools
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import free_port

MODULE = "github.com/cert-manager/cert-manager"
PROGRAMS = GoTools(
    Path(__file__).parent / "tools",
    {name: f"{MODULE}/cmd/{name}" for name in ("controller", "cainjector")},
    "cert-manager",
    "10 minutes",
)
CONTROLLERS = (
    "issuers",
    "certificates-issuing",
    "certificates-key-manager",
    "certificates-metrics",
    "certificates-readiness",
    "certificates-request-manager",
    "certificates-revision-manager",
    "certificates-trigger",
    "certificaterequests-approver",
    "certificaterequests-issuer-ca",
    "certificaterequests-issuer-selfsigned",
)
"""Controllers of certificates by a CA of the cluster. The others serve ingresses and public issuers."""
STOP_SECONDS = 20


@contextmanager
def run_cert_manager(cluster: LocalCluster) -> Iterator[None]:
    """Install cert-manager's definitions, and run it while the context lasts.

    Raises:
        ClusterError: cert-manager cannot be built, or the API server rejects its definitions.
    """
    PROGRAMS.ensure(PROGRAMS.programs)
    definitions = _read_definitions()
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=definitions)
    cluster.kubectl("wait", "crd", "certificates.cert-manager.io", "--for=condition=Established", "--timeout=60s")
    no_election = "--leader-elect=false"
    metrics = f"--metrics-listen-address=127.0.0.1:{free_port()}"
    try:
        with ExitStack() as stack:
            stack.enter_context(
                _run(cluster, "controller", no_election, metrics, f"--controllers={','.join(CONTROLLERS)}")
            )
            stack.enter_context(_run(cluster, "cainjector", no_election))
            yield
    finally:
        cluster.kubectl("delete", "--filename=-", "--ignore-not-found", "--timeout=60s", stdin=definitions)


def request_renewal(cluster: LocalCluster, namespace: str, certificate: str) -> None:
    """Let cert-manager issue a certificate again now, as `cmctl renew` does."""
    found = json.loads(cluster.kubectl("get", "certificate", certificate, "-n", namespace, "-o", "json"))
    issuing = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "the journey renews it",
        "lastTransitionTime": found["metadata"]["creationTimestamp"],
    }
    conditions = [condition for condition in found["status"]["conditions"] if condition["type"] != "Issuing"]
    patch = json.dumps({"status": {"conditions": [*conditions, issuing]}})
    cluster.kubectl(
        *("patch", "certificate", certificate, "-n", namespace),
        *("--subresource=status", "--type=merge", "-p", patch),
    )


@contextmanager
def _run(cluster: LocalCluster, program: str, *flags: str) -> Iterator[None]:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}
    kubeconfig = f"--kubeconfig={cluster.kubeconfig()}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [PROGRAMS.binaries / program, kubeconfig, *flags], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            ended = process.poll()
            process.terminate()
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if ended is not None:
                log.seek(0)
                print(f"{program} ended with {ended}:\n{log.read().decode()[-2000:]}")


def _read_definitions() -> str:
    """Return the definitions of cert-manager's kinds, without the labels that only its Helm chart can fill."""
    files = sorted((PROGRAMS.module_folder(MODULE) / "deploy" / "crds").glob("*.yaml"))
    lines = [line for path in files for line in ("---", *path.read_text().splitlines())]
    return "\n".join(line for line in lines if "{{" not in line)
