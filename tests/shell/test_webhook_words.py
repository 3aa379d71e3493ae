"""One verdict, one text: what the webhook answers is what `trainingjob validate` prints."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import CliRunner
from tests.support.reviewing import examine_here
from trainingjob_api.spec.job import GROUP, KIND, VERSION
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.core.validation.validate import validate_manifest
from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import API_VERSION, MAX_WARNING

EXAMPLES = Path(__file__).parents[2] / "crds/examples"
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))


def load(path: Path) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(path.read_text())
    return job


async def may_use(user: Any, namespace: str, name: str) -> bool:
    del user, namespace, name
    return True


async def answer_to(job: dict[str, Any]) -> dict[str, Any]:
    request = {
        "uid": "u-1",
        "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        "operation": "CREATE",
        "object": job,
    }
    review = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}
    answer = await Admission(examine_here(validate_manifest), may_use).review(json.dumps(review).encode())
    response: dict[str, Any] = answer["response"]
    return response


def validate(path: Path) -> tuple[str, list[str]]:
    """Return the verdict that the command line prints, without the file's name, and its warnings."""
    lines = CliRunner().invoke(app, ["validate", str(path)]).stdout.removeprefix(f"{path}: ").splitlines()
    warnings = [line.removeprefix("Warning").strip() for line in lines if line.startswith("Warning")]
    return "\n".join(line for line in lines if not line.startswith("Warning")), warnings


@pytest.mark.parametrize("path", INVALID, ids=[path.stem for path in INVALID])
async def test_invalid_job_is_rejected_with_the_messages_of_the_command_line(path: Path) -> None:
    response = await answer_to(load(path))
    verdict, warnings = validate(path)

    assert response["allowed"] is False
    assert response["status"]["message"] == verdict
    assert rejoin(response.get("warnings", [])) == warnings


@pytest.mark.parametrize("example", ["demo", "elastic", "fixed", "tpu-v5p-4-slices"])
async def test_wasteful_job_has_the_warnings_of_the_command_line(example: str, tmp_path: Path) -> None:
    job = load(EXAMPLES / f"{example}.yaml")
    job["spec"] |= {"evaluation": [job["spec"]["data"]["train"][0] | {"name": "held-out", "everySteps": 10**8}]}
    job["spec"]["training"]["globalBatchSize"] += 1
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))

    response = await answer_to(job)
    _, warnings = validate(path)

    assert response["allowed"] is True
    assert len(warnings) >= 2
    assert rejoin(response["warnings"]) == warnings
    assert all(len(line) <= MAX_WARNING for line in response["warnings"])


def rejoin(lines: list[str]) -> list[str]:
    """Return warnings that were broken into lines as they were before."""
    whole: list[str] = []
    for line in lines:
        if line.startswith("… "):
            whole[-1] += line.removeprefix("…")
        else:
            whole.append(line)
    return whole


async def test_annotation_without_effect_has_the_warning_of_the_command_line(tmp_path: Path) -> None:
    job = load(EXAMPLES / "fixed.yaml")
    job["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "research"}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))

    response = await answer_to(job)
    _, warnings = validate(path)

    assert response["allowed"] is True
    assert rejoin(response["warnings"]) == warnings
    assert any("metadata.labels.kueue.x-k8s.io/queue-name: has no effect" in warning for warning in warnings)


METADATA: list[dict[str, Any]] = [
    {"lables": {}},
    {"labels": {"v": 1}},
    {"annotations": {"a b": "c"}},
    {"annotation": "not an object, so that its right name is no legal suggestion"},
    {"namespce": 3},
]


@pytest.mark.parametrize("metadata", METADATA)
async def test_invalid_metadata_is_rejected_with_the_messages_of_the_command_line(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    job = load(EXAMPLES / "fixed.yaml")
    job["metadata"] |= metadata
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))

    response = await answer_to(job)
    verdict, _ = validate(path)

    assert response["allowed"] is False
    assert response["status"]["message"] == verdict


async def test_fields_of_the_cluster_use_no_budget_of_the_suggestions() -> None:
    job = load(EXAMPLES / "fixed.yaml")
    job["spec"]["model"]["numLayer"] = job["spec"]["model"].pop("numLayers")
    large = {
        "metadata": job["metadata"] | {"managedFields": [{"fieldsV1": {"f:x": "x" * 2**19}}]},
        "status": {"x": "x" * 2**19},
    }

    assert (await answer_to(job | large))["status"] == (await answer_to(job))["status"]
