"""Upgrades from the previous release, rollbacks and drains: the webhook answers every apply, and training continues.

The commands are those of docs/operations.md.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
import yaml

from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError
from e2e.documented_commands import fill_in, read_commands
from e2e.previous_release import COMMIT, prepare_previous_release
from e2e.product import RELEASE, ROOT, SYSTEM_NAMESPACE, Job, Manifest, Product, load_example, wait_until
from e2e.status import generation_of, is_full, step_of, steps_trained

pytestmark = pytest.mark.soak

APPLIES = int(os.environ.get("APPLIES", "200"))
STORED_JOBS = 10
START_SECONDS = 240
LATER_STEPS = 20
WEBHOOK = "validate.trainingjob.dev"
INVALID_SPEC = {"parallelism": {"ici": {"fsdp": 3}}}
"""Valid by the schema and its rules; only the webhook rejects it."""
OPERATOR_PODS = "app.kubernetes.io/name in (trainingjob,trainingjob-webhook)"


class Applies:
    """Applies of suspended jobs by another thread. Every tenth job is invalid, and must be rejected by the webhook."""

    def __init__(self, product: Product, namespace: str) -> None:
        self.count = 0
        self.wrong: list[str] = []
        """Valid jobs that were rejected and invalid ones that were accepted, with their times and errors."""
        self.slowest = 0.0
        self._product = product
        self._namespace = namespace
        self._ended = threading.Event()

    def run(self) -> None:
        """Apply jobs until `end`."""
        while not self._ended.is_set():
            self.count += 1
            start = time.monotonic()
            self._apply(is_valid=self.count % 10 != 0)
            self.slowest = max(self.slowest, time.monotonic() - start)

    def end(self) -> None:
        """Apply no further job."""
        self._ended.set()

    def _apply(self, *, is_valid: bool) -> None:
        name, error = f"stored-{self.count % STORED_JOBS}" if is_valid else "invalid", ""
        changes = {"training__steps": 1000 + self.count} if is_valid else INVALID_SPEC
        try:
            submit_suspended(self._product, self._namespace, name, **changes)
        except ClusterError as failure:
            error = str(failure)
        if is_valid == bool(error) or (error and f'"{WEBHOOK}" denied' not in error and not is_valid):
            self.wrong.append(f"{datetime.now(UTC):%H:%M:%S} {name}: {error or 'accepted'}")


def submit_suspended(product: Product, namespace: str, name: str, **changes: object) -> Job:
    """Apply a suspended job, which has no pods."""
    manifest = load_example("demo", suspend=True, checkpoint__uri=f"/shared/{name}", **changes)
    return product.submit(namespace, manifest, name=name)


@contextmanager
def apply_jobs(product: Product, namespace: str) -> Iterator[Applies]:
    """Apply jobs while the context lasts, which ends after `APPLIES` of them. Check that each answer was right."""
    applies = Applies(product, namespace)
    thread = threading.Thread(target=applies.run)
    thread.start()
    try:
        yield applies
        wait_until(f"{APPLIES} applies", lambda: applies.count >= APPLIES or None, START_SECONDS)
    finally:
        applies.end()
        thread.join()
        print(f"{applies.count} applies, {len(applies.wrong)} wrong answers, slowest {applies.slowest:.1f} s")
        print("\n".join(applies.wrong))
    assert applies.wrong == []


def assert_same_world(job: Job, before: Manifest, phase: str) -> None:
    """Check that the world of a status trains further steps, without another attempt or lost steps."""
    step = step_of(job.status()) + LATER_STEPS
    after = job.wait(f"step {step}", lambda status: step_of(status) >= step, START_SECONDS)
    print(f"{phase}: generation {generation_of(after)}, step {step_of(after)}, {len(after['attempts'])} attempts")
    assert generation_of(after) == generation_of(before)
    assert after["restarts"] == before["restarts"]
    assert len(after["attempts"]) == len(before["attempts"])


def run_documented(product: Product, verb: str) -> None:
    """Run the `helm upgrade` to a product, or the `helm rollback`, that docs/operations.md prints."""
    commands = read_commands(ROOT / "docs/operations.md", "Upgrade and roll back")
    (command,) = (arguments for arguments in commands if arguments[:2] == ["helm", verb])
    if verb == "upgrade":
        tag = product.cluster.operator_image.rpartition(":")[2]
        command = fill_in(command, {"charts/trainingjob": str(product.chart), "TAG": tag})
    product.cluster.helm(*command[1:])


def assert_installed(release: Product) -> None:
    """Check that the operator's image and the CRD are those of a release, and that it has the values of its users."""
    want = release.values.get("image.tag", release.cluster.operator_image.rpartition(":")[2])
    images = {pod["spec"]["containers"][0]["image"] for pod in (*release.operator_pods(), *release.webhook_pods())}
    assert {image.rpartition(":")[2] for image in images} == {want}
    generated = yaml.safe_load((release.chart / "files/trainingjob-crd.yaml").read_text())
    stored = json.loads(release.cluster.kubectl("get", "crd", generated["metadata"]["name"], "-o", "json"))
    assert list_fields(stored["spec"]["versions"][0]) == list_fields(generated["spec"]["versions"][0])
    values = json.loads(release.cluster.helm("get", "values", RELEASE, "-n", SYSTEM_NAMESPACE, "-o", "json"))
    assert values["trainer"]["image"]["tag"] == COMMIT


def list_fields(schema: Manifest, path: str = "") -> set[str]:
    """Return the paths of all fields of a schema."""
    found: set[str] = set()
    for key, inner in schema.items():
        if isinstance(inner, dict):
            found |= {f"{path}.{key}", *list_fields(inner, f"{path}.{key}")}
    return found


@pytest.fixture(scope="module")
def previous(cluster: LocalCluster) -> Product:
    """The previous release, which is not installed yet."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"images of the previous release are not built for the {cluster.name} cluster")
    return prepare_previous_release(cluster)


def test_upgrade_and_rollback_reject_no_job_and_end_no_world(previous: Product, product: Product) -> None:
    """Upgrade from the previous release, roll back and upgrade again, with stored jobs and one that trains."""
    product.cluster.helm("uninstall", "trainingjob", f"--namespace={SYSTEM_NAMESPACE}", "--wait", "--timeout=2m")
    previous.install()
    with product.namespace("journey-upgrade") as namespace:
        for number in range(STORED_JOBS):
            submit_suspended(product, namespace, f"stored-{number}")
        manifest = load_example("demo", training__steps=100_000, checkpoint__uri="/shared/running")
        job = product.submit(namespace, manifest, name="running")
        trains = lambda status: is_full(status) and steps_trained(status) > 0  # noqa: E731
        before = job.wait("steps on both slices", trains, START_SECONDS)

        with apply_jobs(product, namespace) as applies:
            for release, verb, phase in (
                (product, "upgrade", "upgrade"),
                (previous, "rollback", "rollback"),
                (product, "upgrade", "second upgrade"),
            ):
                start, count = time.monotonic(), applies.count
                run_documented(product, verb)
                wait_until("the replaced pods to end", product.is_rolled_out, timeout=60)
                assert_installed(release)
                print(f"{phase}: {time.monotonic() - start:.0f} s, {applies.count - count} applies")
                assert_same_world(job, before, phase)


def test_drain_of_the_operators_node_rejects_no_job_and_ends_no_world(product: Product) -> None:
    """Drain the node of the operator, the node of a webhook and the operator's node again, while one job trains."""
    cluster = product.cluster
    Product(cluster, {"nodeSelector.trainingjob\\.dev/role": "worker"}).install()
    try:
        with product.namespace("journey-drain") as namespace:
            manifest = load_example("demo", training__steps=100_000, checkpoint__uri="/shared/running")
            job = product.submit(namespace, manifest, name="running")
            trains = lambda status: is_full(status) and steps_trained(status) > 0  # noqa: E731
            before = job.wait("steps on both slices", trains, START_SECONDS)
            with apply_jobs(product, namespace):
                for pods in (product.operator_pods, product.webhook_pods, product.operator_pods):
                    pod = pods()[0]
                    drain(product, pod["spec"]["nodeName"])
                    assert_same_world(job, before, f"drain of the node of {pod['metadata']['name']}")
    finally:
        product.install()


def drain(product: Product, node: str) -> None:
    """Evict the operator's and the webhook's pods from a node, and wait until their replacements are ready."""
    selector = f"--pod-selector={OPERATOR_PODS}"
    try:
        product.cluster.kubectl("drain", node, selector, "--delete-emptydir-data", "--timeout=120s")
        for name in ("trainingjob-operator", "trainingjob-operator-webhook"):
            product.cluster.kubectl("rollout", "status", f"deployment/{name}", "-n", SYSTEM_NAMESPACE, "--timeout=120s")
        wait_until("a leader on another node", lambda: product.leader() or None, START_SECONDS)
    finally:
        product.cluster.kubectl("uncordon", node)
