"""Invalid input on a real cluster: the answers of `kubectl apply`, and the conditions for host-side problems."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.run_program import ClusterError
from e2e.product import ROOT, Job, Product, change, load_example, wait_until
from e2e.status import condition

pytestmark = pytest.mark.cluster

TRAININGJOB = str(Path(sys.executable).with_name("trainingjob"))

type Submit = Callable[[dict[str, Any]], Job]


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-problems") as name:
        yield name


@pytest.fixture
def submit(product: Product, namespace: str) -> Iterator[Submit]:
    """Return a function that applies jobs; delete them with their pods after the test."""
    jobs: list[Job] = []

    def submit(manifest: dict[str, Any]) -> Job:
        jobs.append(product.submit(namespace, manifest, name=f"job-{len(jobs)}"))
        return jobs[-1]

    yield submit
    for job in jobs:
        uid = job.read().get("metadata", {}).get("uid", "gone")
        job.delete()
        wait_until("the pods to be gone", lambda job=job, uid=uid: True if not job.children("pods", uid) else None, 120)


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unknown field": ({"optimizer__learningrate": 1}, ["spec.optimizer.learningrate", "learningRate"]),
    "a wrong type": ({"training__steps": "many"}, ["spec.training.steps"]),
    "out of range": ({"optimizer__adamw": {"beta1": 2.0}}, ["spec.optimizer.adamw.beta1"]),
    "a mesh that does not multiply": ({"parallelism": {"ici": {"fsdp": 3}}}, ["spec.parallelism.ici", "4"]),
    "heads that tensor does not divide": (
        {"parallelism": {"ici": {"tensor": 4}}, "model__numKvHeads": 2},
        ["spec.parallelism.ici.tensor", "numKvHeads"],
    ),
    "a topology that is none": (
        {"slices__accelerator": "tpu-v5p", "slices__topology": "4x4x5"},
        ["spec.slices.topology", "4x4x4"],
    ),
    "two -1": ({"parallelism": {"ici": {"fsdp": -1, "data": -1}}}, ["spec.parallelism.ici", "-1"]),
    "min above max": ({"slices__min": 3, "slices__max": 2}, ["spec.slices.min"]),
    "a vocabulary below the tokenizer's": ({"model__vocabSize": 100}, ["spec.model.vocabSize", "257"]),
}


@pytest.mark.parametrize(("changes", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_apply_rejects(product: Product, namespace: str, changes: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(ClusterError) as refusal:
        product.submit(namespace, load_example("demo", **changes), name="refused")

    answer = str(refusal.value)
    print(answer)  # source of the table in the final report
    assert all(text in answer for text in expected), answer


def test_apply_rejects_a_name_that_no_pod_can_have(product: Product, namespace: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        product.submit(namespace, load_example("demo"), name="n" * 50)

    assert "metadata.name" in str(refusal.value)


def test_apply_reports_all_problems_at_once(product: Product, namespace: str) -> None:
    changes = {"model__numHeads": 5, "slices__min": 3, "schedule": {"warmup": 10_000}}
    with pytest.raises(ClusterError) as refusal:
        product.submit(namespace, load_example("demo", **changes), name="refused")

    answer = str(refusal.value)
    assert all(path in answer for path in ("spec.model.num", "spec.slices.min", "spec.schedule.warmup")), answer


DRY: dict[str, dict[str, Any]] = {
    "an unknown field": {"optimizer__learningrate": 1},
    "a mesh that does not multiply": {"parallelism": {"ici": {"fsdp": 3}}},
    "min above max": {"slices__min": 3, "slices__max": 2},
    "many at once": {"model__numHeads": 5, "model__vocabSize": 100, "schedule": {"warmup": 10_000}},
    "a folder on no volume, and a warning": {"checkpoint__uri": "/elsewhere/run", "precision__compute": "bfloat16"},
}
"""Changes that pass the schema and CEL, so that the answer comes from the webhook."""


@pytest.mark.parametrize("changes", DRY.values(), ids=DRY.keys())
def test_dry_run_reports_the_problems_of_validate(
    product: Product, namespace: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    manifest = load_example("demo", **changes)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest))
    validated = subprocess.run([TRAININGJOB, "validate", str(file)], capture_output=True, text=True, check=False)
    with pytest.raises(ClusterError) as refusal:
        product.cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(file))

    lines = validated.stdout.removeprefix(f"{file}: ").splitlines()
    problems = [line for line in lines if not line.startswith("Warning")]
    warnings = [line.removeprefix("Warning").strip() for line in lines if line.startswith("Warning")]
    assert validated.returncode == 1
    assert "\n".join(problems) in str(refusal.value)
    assert [warning for warning in warnings if f"Warning: {warning}" not in str(refusal.value)] == []


def test_defaults_are_stored_except_those_of_the_model(product: Product, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(load_example("demo", optimizer__clipNorm=0)))
    printed = product.cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-o", "json", "-f", str(file))

    stored = json.loads(printed)["spec"]
    assert (stored["optimizer"]["clipNorm"], stored["optimizer"]["weightDecay"]["rate"]) == (0, 0.1)
    assert {"norm", "rope", "init", "tieEmbeddings"} & stored["model"].keys() == set()


def test_the_definition_costs_the_api_server_little(product: Product) -> None:
    printed = product.cluster.kubectl("apply", "--dry-run=server", "-f", str(ROOT / "crds/trainingjob.yaml"))

    assert "customresourcedefinition.apiextensions.k8s.io/trainingjobs.trainingjob.dev" in printed


FIXED: dict[str, dict[str, Any]] = {
    "spec.model": {"model__numLayers": 4},
    "spec.training.seed": {"training__seed": 7},
    "spec.slices.topology": {"slices__topology": "2x4"},
}


@pytest.mark.parametrize(("path", "changes"), FIXED.items(), ids=FIXED.keys())
def test_immutable_fields_advise_what_to_do(
    product: Product, namespace: str, submit: Submit, path: str, changes: dict[str, Any]
) -> None:
    manifest = load_example("demo", suspend=True, checkpoint__uri="/shared/fixed")
    job = submit(manifest)
    with pytest.raises(ClusterError) as refusal:
        product.submit(namespace, change(manifest, changes), name=job.name)

    answer = str(refusal.value)
    assert f"{path}: Invalid value" in answer, answer
    assert "cannot change: " in answer
    assert "checkpoint.takeover: true" in answer or "a separate `checkpoint.uri`" in answer


def test_number_of_replicas_cannot_change(product: Product, namespace: str, submit: Submit) -> None:
    manifest = load_example("demo", suspend=True)
    manifest["spec"]["parallelism"]["replicas"] = {"syncEvery": 10}
    manifest["spec"]["checkpoint"] = {"uri": "/shared/parts", "save": {"everySteps": 20}}
    job = submit(manifest)

    with pytest.raises(ClusterError) as refusal:
        product.submit(namespace, change(manifest, {"slices__max": 1}), name=job.name)

    answer = str(refusal.value)
    assert "spec.slices: Invalid value" in answer, answer
    assert "each slice trains one of `max` parts of the batch" in answer, answer


FAILED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unreadable data path": (
        {"data": {"train": [{"name": "gone", "path": "/shared/no-such-folder"}]}},
        ["spec.data.train", "/shared/no-such-folder"],
    ),
    "empty data": (
        {"data": {"train": [{"name": "none", "path": "python:json", "pattern": "*.nothing"}]}},
        ["spec.data.train", "*.nothing"],
    ),
    "a checkpoint folder that cannot be written": (
        {"checkpoint__uri": "/shared/read-only/run"},
        ["spec.checkpoint.uri", "/shared/read-only"],
    ),
    "initial parameters that are nowhere": (
        {"checkpoint__initializeFrom": {"uri": "/shared/no-such-run"}},
        ["spec.checkpoint.initializeFrom.uri", "holds no intact step"],
    ),
    "a tokenizer that does not match the vocabulary": (
        {"tokenizer": {"type": "tokenizers", "path": "/shared/tokenizer.json"}, "model__vocabSize": 257},
        ["spec.model.vocabSize", "257"],
    ),
}


@pytest.fixture(scope="module")
def prepared(product: Product, namespace: str) -> None:
    """Create the inputs of the failing jobs: a folder without write permission, a tokenizer with 300 tokens."""
    program = (
        "import json, os\n"
        "vocab = {f't{i}': i for i in range(300)}\n"
        "model = {'type': 'WordLevel', 'vocab': vocab, 'unk_token': 't0'}\n"
        "json.dump({'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': None,\n"
        "           'pre_tokenizer': {'type': 'Whitespace'}, 'post_processor': None, 'decoder': None,\n"
        "           'model': model}, open('/shared/tokenizer.json', 'w'))\n"
        "os.makedirs('/shared/read-only', mode=0o555)\n"
    )
    product.run_in_reader(namespace, "python3", "-c", program)


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("case", FAILED)
def test_condition_reports_problems_that_only_a_host_finds(submit: Submit, case: str) -> None:
    changes, expected = FAILED[case]
    own_folder = f"/shared/{case.replace(' ', '-')}"  # a folder belongs to the first job that writes into it
    manifest = load_example("fixed", **({"checkpoint__uri": own_folder} | changes))
    job = submit(manifest)
    status = job.wait_for_phase("Failed", timeout=180)

    message = condition(status, "Failed")["message"]
    print(message)
    assert all(text in message for text in expected), message
    assert status["restarts"]["total"] == 0


PENDING: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an image that cannot be pulled": ({"runtime__image": "localhost/no-such-image:1"}, ["no-such-image"]),
    "no node that fits": ({"scheduling__nodeSelector": {"disk": "none-such"}}, ["node"]),
    "a secret that is not there": (
        {"runtime__env": [{"name": "KEY", "secretKeyRef": {"name": "absent", "key": "key"}}]},
        ["absent"],
    ),
    "a claim that is not there": (
        {
            "runtime__volumes": [{"name": "shared", "claimName": "no-claim", "mountPath": "/shared"}],
        },
        ["no-claim"],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), PENDING.values(), ids=PENDING.keys())
def test_condition_reports_why_pods_do_not_start(submit: Submit, changes: dict[str, Any], expected: list[str]) -> None:
    manifest = load_example("fixed", checkpoint__uri="/shared/pending", **changes)
    job = submit(manifest)

    status = job.wait(
        "the reason in the condition",
        lambda status: all(text in condition(status, "Running").get("message", "") for text in expected),
        timeout=90,
    )
    assert condition(status, "Running")["status"] == "False"
    print(condition(status, "Running")["message"])


def test_env_from_secrets_and_config_maps_and_claims_work(product: Product, namespace: str, submit: Submit) -> None:
    product.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "keys", "namespace": namespace},
            "stringData": {"key": "s3cr3t-value"},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "facts", "namespace": namespace},
            "data": {"fact": "plain"},
        },
    )
    env = [
        {"name": "FROM_SECRET", "secretKeyRef": {"name": "keys", "key": "key"}},
        {"name": "FROM_CONFIG", "configMapKeyRef": {"name": "facts", "key": "fact"}},
        {"name": "PLAIN", "value": "text"},
    ]
    manifest = load_example("fixed", checkpoint__uri="/shared/env", training__steps=100_000, runtime__env=env)
    job = submit(manifest)
    job.wait_for_step(1, timeout=180)

    pod = next(iter(job.pods()))
    seen = product.cluster.kubectl("exec", "-n", namespace, pod, "--", "env")
    assert {"FROM_SECRET=s3cr3t-value", "FROM_CONFIG=plain", "PLAIN=text"} <= set(seen.splitlines())
    reported = str(job.read()) + product.cluster.kubectl("logs", "-n", namespace, pod)
    assert "s3cr3t-value" not in reported
