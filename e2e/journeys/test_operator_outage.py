"""Outages of the operator or its webhook: reviewed jobs, continued training, and recovery."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from e2e.api_audit import Request, parse
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError
from e2e.product import RELEASE, Job, Manifest, Product, load_example, wait_until
from e2e.status import condition, generation_of, is_full, steps_trained

pytestmark = pytest.mark.cluster

WEBHOOK = "validate.trainingjob.dev"
CONFIGURATION = ("validatingwebhookconfiguration", "trainingjob-operator")
INVALID_SPEC = {"parallelism": {"ici": {"fsdp": 3}}}
"""Valid by the schema and its rules; only the webhook rejects it."""
DEAD_WEBHOOK = "jobsets.example.com"
"""Another party's webhook for JobSets, whose service does not exist."""
TIMEOUT_SECONDS = 240
WEBHOOK_REPAIR_SECONDS = 60 + 30
"""Seconds until the operator checks a new configuration, plus a margin for a busy machine."""


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-away") as name:
        yield name


def apply_suspended(product: Product, namespace: str, name: str, **changes: Manifest) -> Job:
    """Apply a suspended job, which has no pods."""
    return product.submit(
        namespace, load_example("demo", suspend=True, checkpoint__uri=f"/shared/{name}", **changes), name=name
    )


def find_rejection(product: Product, namespace: str) -> str:
    """Return the error that rejects a bad job. Empty: it was admitted, and has been deleted."""
    try:
        job = apply_suspended(product, namespace, "bad", **INVALID_SPEC)
    except ClusterError as error:
        return str(error)
    job.delete()
    return ""


@contextmanager
def dead_webhook(product: Product, namespace: str) -> Iterator[None]:
    """Register an unreachable webhook for the JobSets of slices above the minimum while the context lasts."""
    pods = {"containers": [{"name": "x", "image": "x"}], "restartPolicy": "Never"}
    probe = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe-x1", "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "x", "template": {"spec": {"template": {"spec": pods}}}}]},
    }
    webhook = {
        "name": DEAD_WEBHOOK,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": {"namespace": namespace, "name": "nobody"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "matchConditions": [{"name": "elastic", "expression": "object.metadata.name.contains('-x')"}],
        "rules": [
            {
                "apiGroups": ["jobset.x-k8s.io"],
                "apiVersions": ["*"],
                "operations": ["CREATE"],
                "resources": ["jobsets"],
            }
        ],
    }
    product.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": DEAD_WEBHOOK},
            "webhooks": [webhook],
        }
    )

    def is_called() -> bool | None:
        try:
            product.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))
        except ClusterError as error:
            return DEAD_WEBHOOK in str(error) or None
        return None

    try:
        wait_until("the API server to ask the webhook", is_called, timeout=30)
        yield
    finally:
        product.cluster.kubectl("delete", "validatingwebhookconfiguration", DEAD_WEBHOOK)


def test_pods_lost_during_an_outage_return_into_one_world(product: Product, namespace: str) -> None:
    manifest = load_example("demo", training__steps=100_000, checkpoint__uri="/shared/left-alone")
    job = product.submit(namespace, manifest, name="left-alone")
    job.wait_for_step(5, timeout=180)
    before = job.wait(
        "a step on both slices",
        lambda status: is_full(status) and "firstStep" in status["attempts"][-1],
        TIMEOUT_SECONDS,
    )

    product.scale_operator(0)
    try:
        product.cluster.kubectl(
            *("delete", "pods", "-n", namespace, "-l", f"trainingjob.dev/job-uid={job.read()['metadata']['uid']}"),
            *("--grace-period=0", "--force"),
        )
        assert f'admission webhook "{WEBHOOK}" denied the request' in find_rejection(product, namespace)
        apply_suspended(product, namespace, "meanwhile")
    finally:
        product.scale_operator(1)

    after = job.wait(
        "a new step on both slices",
        lambda status: generation_of(status) > generation_of(before) and is_full(status) and steps_trained(status) > 0,
        TIMEOUT_SECONDS,
    )
    assert after["restarts"]["total"] == before["restarts"]["total"] + 1
    assert (after["restarts"]["counted"], after["restarts"]["sinceCommit"]) == (0, 0)
    assert len([attempt for attempt in after["attempts"] if "ended" not in attempt]) == 1
    Job(product.cluster, namespace, "meanwhile").delete()
    job.delete()


def test_no_review_fails_while_the_webhook_is_replaced(product: Product, namespace: str) -> None:
    """Apply invalid jobs without a pause, while each pod of the webhook and the operator is replaced."""
    before = {pod["metadata"]["uid"] for pod in product.webhook_pods()}
    ended, answers = threading.Event(), list[str]()

    def apply_until_the_end() -> None:
        while not ended.is_set():
            answers.append(find_rejection(product, namespace))

    applying = threading.Thread(target=apply_until_the_end)
    applying.start()
    try:
        Product(product.cluster, {"podAnnotations.release": "webhook"}).install()
    finally:
        ended.set()
        applying.join()

    assert before.isdisjoint(pod["metadata"]["uid"] for pod in product.webhook_pods())
    assert len(answers) >= 2
    denied = f'admission webhook "{WEBHOOK}" denied the request'
    assert [answer for answer in answers if denied not in answer] == []
    product.install()


def test_helm_test_succeeds_and_leaves_no_rights(product: Product) -> None:
    output = product.cluster.helm("test", RELEASE, "--namespace", "trainingjob-system", "--logs")

    assert "the webhook rejects an invalid job and accepts a valid one" in output
    left = product.cluster.kubectl("get", "rolebindings,serviceaccounts", "-n", "trainingjob-system", "-o", "name")
    assert "trainingjob-operator-test" not in left


def test_jobs_are_rejected_while_no_pod_of_the_webhook_answers(product: Product, namespace: str) -> None:
    def scale(replicas: int) -> None:
        target = ("deployment/trainingjob-operator-webhook", "-n", "trainingjob-system")
        product.cluster.kubectl("scale", *target, f"--replicas={replicas}")
        product.cluster.kubectl("rollout", "status", *target, "--timeout=120s")

    scale(0)
    try:
        wait_until(
            "no endpoint of the webhook",
            lambda: True if f'failed calling webhook "{WEBHOOK}"' in find_rejection(product, namespace) else None,
            timeout=60,
        )
    finally:
        scale(2)
    assert f'admission webhook "{WEBHOOK}" denied the request' in find_rejection(product, namespace)


def test_slice_that_is_not_admitted_stops_no_other_slice(product: Product, namespace: str) -> None:
    manifest = load_example("demo", training__steps=100_000, checkpoint__uri="/shared/not-let-in")
    with dead_webhook(product, namespace):
        job = product.submit(namespace, manifest, name="not-let-in")
        alone = job.wait(
            "steps on one slice, and why it is one",
            lambda status: (
                steps_trained(status) > 0
                and f'failed calling webhook "{DEAD_WEBHOOK}"' in condition(status, "Degraded").get("message", "")
            ),
            TIMEOUT_SECONDS,
        )
    full = job.wait("steps on both", lambda status: is_full(status) and steps_trained(status) > 0, TIMEOUT_SECONDS)

    assert alone["world"]["slices"] == [0]
    assert generation_of(full) == generation_of(alone) + 1
    assert full["restarts"]["total"] == 0
    job.delete()


@pytest.mark.soak
def test_an_upgrade_of_the_operator_changes_nothing_that_trains(product: Product, namespace: str) -> None:
    manifest = load_example("demo", training__steps=100_000, checkpoint__uri="/shared/upgraded")
    job = product.submit(namespace, manifest, name="upgraded")
    before = job.wait("steps on both slices", lambda status: is_full(status) and steps_trained(status) > 0, 240)
    operators = {pod["metadata"]["uid"] for pod in product.operator_pods()}

    Product(product.cluster, {"podAnnotations.release": "next"}).install()
    assert operators.isdisjoint(pod["metadata"]["uid"] for pod in product.operator_pods())
    trained = steps_trained(job.status())
    after = job.wait("a later step", lambda status: steps_trained(status) > trained, TIMEOUT_SECONDS)

    assert generation_of(after) == generation_of(before)
    assert after["restarts"] == before["restarts"]
    job.delete()
    product.install()


def test_child_that_is_applied_three_times_is_unchanged(product: Product, namespace: str) -> None:
    if not isinstance(product.cluster, LocalCluster):
        pytest.skip("only the local cluster records what the operator applied")
    start = datetime.now(UTC)
    job = product.submit(namespace, load_example("demo", checkpoint__uri="/shared/thrice"), name="thrice")
    uid = job.read()["metadata"]["uid"]

    def find_applied() -> Request | None:
        requests = map(parse, product.cluster.read_requests(start))
        return next(
            (request for request in requests if request.verb == "patch" and request.resource == "networkpolicies"), None
        )

    applied = wait_until("the operator to apply the NetworkPolicy", find_applied, timeout=60)
    (before,) = job.children("networkpolicies", uid)
    for _ in range(3):
        product.cluster.kubectl(
            *("apply", "--server-side", "--force-conflicts", "--field-manager=trainingjob-operator", "-f", "-"),
            stdin=json.dumps(applied.body),
        )

    assert applied.name == before["metadata"]["name"]
    assert job.children("networkpolicies", uid) == [before]
    job.delete()


def test_invalid_job_without_the_webhook_has_a_condition(product: Product, namespace: str) -> None:
    assert f'admission webhook "{WEBHOOK}" denied the request' in find_rejection(product, namespace)
    product.cluster.kubectl("delete", *CONFIGURATION)
    try:
        job = apply_suspended(product, namespace, "let-in", **INVALID_SPEC)
        status = job.wait("the verdict", lambda status: condition(status, "Valid").get("status") == "False", 60)
        assert condition(status, "Valid")["reason"] == "InvalidSpec"
        assert any(
            problem.startswith("spec.parallelism.ici: the degrees multiply to 3 (fsdp=3)")
            for problem in status["problems"]
        )
        assert not job.pods()
        job.delete()
        with pytest.raises(ClusterError, match=r"spec\.optimizer\.adamw\.beta1"):
            apply_suspended(product, namespace, "beyond", optimizer__adamw={"beta1": 2.0})
    finally:
        product.install()

    denied = f'admission webhook "{WEBHOOK}" denied the request'
    wait_until(
        "the webhook to be trusted again",
        lambda: True if denied in find_rejection(product, namespace) else None,
        timeout=WEBHOOK_REPAIR_SECONDS,
        describe_actual=lambda: find_rejection(product, namespace),
    )
