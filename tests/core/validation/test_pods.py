"""What goes into pods is judged as the API server and a kubelet judge it."""

from typing import Annotated, Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.base import KeyRef, Secret, SecretVariable
from trainingjob_api.pod_variables import find_secret_fields
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.metrics import Metrics
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.core.validation.validate_pods import describe_image_error, describe_label_key_error
from trainingjob_operator.core.validation.validate_runtime import check_env

DIGEST = "sha256:" + "0123456789abcdef" * 4

IMAGES = [
    "trainer",
    "trainer:1.0",
    "org/trainer",
    "docker.io/org/trainer:v1",
    "localhost/trainer",
    "localhost:5000/trainer:1",
    "registry.example/a/b/c:1.0_rc.1-2",
    "registry.example:443/a__b/c-d/e.f:1",
    "Registry.Example/trainer:1",
    "[2001:db8::1]:5000/trainer:1",
    f"trainer@{DIGEST}",
    f"registry.example/trainer:1.0@{DIGEST}",
    "a--b/c",
    "trainer:" + "t" * 128,
]


@pytest.mark.parametrize("image", IMAGES)
def test_a_kubelet_reads_this_image(image: str) -> None:
    assert describe_image_error(image) == ""


BAD_IMAGES: dict[str, tuple[str, str]] = {
    "Org/Trainer:1": ("registry", ""),
    "registry.example/Trainer:1.0": ("lower-case", "registry.example/trainer:1.0"),
    "library/Trainer": ("lower-case", "library/trainer"),
    "https://registry.example/trainer:1": ("scheme", "registry.example/trainer:1"),
    "docker://trainer:1": ("scheme", "trainer:1"),
    "trainer:": ("tag", "trainer"),
    "trainer:-1": ("tag", ""),
    "trainer:1.0+cuda": ("tag", ""),
    "trainer:v1:v2": ("tag", ""),
    "trainer:" + "t" * 129: ("tag", ""),
    "trainer@sha256:abc": ("digest", ""),
    "trainer@sha256:" + "0" * 40: ("64 hexadecimal digits", ""),
    "trainer@latest": ("digest", ""),
    "registry.example//trainer": ("parts", "registry.example/trainer"),
    "/trainer:1": ("parts", "trainer:1"),
    "trainer/": ("parts", "trainer"),
    "a._b": ("parts", ""),
    "-trainer": ("parts", ""),
    "trainer_": ("parts", ""),
    "registry_1.example/trainer": ("registry", ""),
    "registry.example:port/trainer": ("registry", ""),
    "a" * 256: ("at most 255", ""),
    "0123456789abcdef" * 4: ("id of an image", ""),
}


def judge(**runtime: Any) -> Any:
    return validate_job("a", spec_manifest(runtime={**spec_manifest()["runtime"], **runtime}))


@pytest.mark.parametrize(("image", "words", "nearest"), [(image, *want) for image, want in BAD_IMAGES.items()])
def test_a_kubelet_does_not_read_this_image(image: str, words: str, nearest: str) -> None:
    problems = [problem for problem in judge(image=image).problems if problem.path == "spec.runtime.image"]

    if image == "Org/Trainer:1":  # capitals make a registry of the first part
        assert describe_image_error(image) != ""
        return
    assert len(problems) == 1
    assert words in problems[0].message
    assert problems[0].nearest == ((nearest,) if nearest else ())


KEYS = ["disk", "example.com/disk", "a-b.c/d_e.F", "x" * 63, "a." * 100 + "com/x"]
BAD_KEYS = {
    "": "must be letters",
    "a b": "must be letters",
    "-disk": "must be letters",
    "disk-": "must be letters",
    "x" * 64: "at most 63",
    "Example.com/disk": "lower-case",
    "a..b/disk": "lower-case",
    "a.-b/disk": "lower-case",
    "/disk": "lower-case",
    "a/b/c": "lower-case",
    "a" * 254 + "/x": "lower-case",
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_label(key: str) -> None:
    assert describe_label_key_error(key) == ""


@pytest.mark.parametrize(("key", "words"), BAD_KEYS.items())
def test_no_key_of_a_label(key: str, words: str) -> None:
    assert words in describe_label_key_error(key)


FIELDS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a service account": ({"serviceAccountName": "a..b"}, "serviceAccountName", ("a.b",)),
    "a pull secret": ({"imagePullSecrets": ["a.-b"]}, "imagePullSecrets[0]", ("a.b",)),
    "a secret": (
        {"env": [{"name": "A", "secretKeyRef": {"name": "a-.b", "key": "k"}}]},
        "env[0].secretKeyRef.name",
        ("a.b",),
    ),
    "a key of a secret": (
        {"env": [{"name": "A", "secretKeyRef": {"name": "a", "key": "."}}]},
        "env[0].secretKeyRef.key",
        (),
    ),
    "a key of a map": (
        {"env": [{"name": "A", "configMapKeyRef": {"name": "a", "key": "..data"}}]},
        "env[0].configMapKeyRef.key",
        (),
    ),
    "a claim": (
        {"volumes": [{"name": "shared", "claimName": "a..b", "mountPath": "/shared"}]},
        "volumes[0].claimName",
        ("a.b",),
    ),
    "a mount": (
        {"volumes": [*spec_manifest()["runtime"]["volumes"], {"name": "a", "claimName": "a", "mountPath": "/mnt/a:b"}]},
        "volumes[1].mountPath",
        ("/mnt/a-b",),
    ),
    "memory": ({"resources": {"memory": "9999999999Gi"}}, "resources.memory", ("64Ti",)),
    "memory, a little too much": ({"resources": {"memory": "1200000Gi"}}, "resources.memory", ("64Ti",)),
}


@pytest.mark.parametrize(("runtime", "path", "nearest"), FIELDS.values(), ids=FIELDS.keys())
def test_invalid_pod_fields_are_rejected(runtime: dict[str, Any], path: str, nearest: tuple[str, ...]) -> None:
    (problem,) = judge(**runtime).problems

    assert (problem.path, problem.nearest) == (f"spec.runtime.{path}", nearest)


class Tracked(Metrics):
    api_key: Annotated[Secret, SecretVariable("SERVER_KEY")] = Secret(secret_key_ref=KeyRef(name="keys", key="server"))


class Job(TrainingJobSpec):
    metrics: Tracked = Tracked()


def test_the_variable_of_a_secret_is_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_api.pod_variables.SECRET_FIELDS", tuple(find_secret_fields(Job)))
    env = [{"name": "OTHER", "value": "1"}, {"name": "SERVER_KEY", "value": "1"}]

    (problem,) = check_env(Job.model_validate(spec_manifest(runtime={"env": env})))

    assert (problem.path, problem.value) == ("spec.runtime.env[1].name", "SERVER_KEY")
    assert problem.message == (
        "SERVER_KEY must not be set beside spec.metrics.apiKey, which sets it. Remove one of the two."
    )


SCHEDULING: dict[str, tuple[dict[str, Any], str]] = {
    "a queue longer than a label": ({"queueName": "q" * 64}, "queueName"),
    "a queue": ({"queueName": "a..b"}, "queueName"),
    "a priority": ({"priorityClassName": "a.-b"}, "priorityClassName"),
    "a label": ({"nodeSelector": {"a..b/disk": "ssd"}}, "nodeSelector.a..b/disk"),
    "a taint": ({"tolerations": [{"key": "a.-b/spot", "operator": "Exists"}]}, "tolerations[0].key"),
    "a topology": ({"exclusiveTopology": "a..b/rack"}, "exclusiveTopology"),
    "a level": ({"queueName": "q", "requiredTopology": "a..b/rack"}, "requiredTopology"),
    "a level without a queue": ({"requiredTopology": "example.com/rack"}, "requiredTopology"),
    "a preferred level without a queue": ({"preferredTopology": "example.com/rack"}, "preferredTopology"),
    "two levels": (
        {"queueName": "q", "requiredTopology": "example.com/rack", "preferredTopology": "example.com/block"},
        "preferredTopology",
    ),
}


@pytest.mark.parametrize(("scheduling", "path"), SCHEDULING.values(), ids=SCHEDULING.keys())
def test_invalid_scheduling_fields_are_rejected(scheduling: dict[str, Any], path: str) -> None:
    (problem,) = validate_job("a", spec_manifest(scheduling=scheduling)).problems

    assert problem.path == f"spec.scheduling.{path}"
