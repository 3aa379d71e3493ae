"""Check of an installation, which `helm test` runs: the API server has jobs reviewed by the webhook.

Both requests are dry runs, so nothing is stored and nothing runs.
"""

import asyncio
from typing import Any

from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.logging_setup import Log

TIMEOUT_SECONDS = 60.0
"""Time until the API server must trust a webhook that was just installed."""
RETRY_SECONDS = 2.0
WEBHOOK = "validate.trainingjob.dev"
NAME = "installation-test"
VALID_SPEC: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
    "model": {"preset": "gpt2"},
    "data": {"train": [{"name": "text", "path": "/shared/text", "pattern": "*.txt"}]},
    "training": {"steps": 1000, "globalBatchSize": 1, "sequenceLength": 16},
    "optimizer": {"learningRate": 0.001},
    "precision": {"compute": "float32"},
    "checkpoint": {"uri": "/shared/installation-test"},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}
INVALID_SPEC = VALID_SPEC | {"parallelism": {"ici": {"fsdp": 3}}}
"""Valid by the definition; only the webhook rejects it."""

log = Log("test")


class InstallationError(Exception):
    """The installation does not work. The message says why."""


async def check_installation(api: Api, namespace: str) -> None:
    """Check that the webhook rejects an invalid job and accepts a valid one. Retry until `TIMEOUT_SECONDS`.

    Raises:
        InstallationError: it does not.
    """
    problem = "the API server does not answer"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while problem := await _find_problem(api, namespace):
                log.info("not yet", why=problem)
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError as error:
        raise InstallationError(problem) from error
    log.info("the webhook rejects an invalid job and accepts a valid one", namespace=namespace)


async def _find_problem(api: Api, namespace: str) -> str:
    """Return a problem of the installation. Empty: none."""
    refusal = await _find_refusal(api, namespace, INVALID_SPEC)
    if f'"{WEBHOOK}" denied the request' not in refusal:
        return f"the webhook must reject an invalid job: {refusal or 'it was accepted'}"
    refusal = await _find_refusal(api, namespace, VALID_SPEC)
    return f"a valid job must be accepted: {refusal}" if refusal else ""


async def _find_refusal(api: Api, namespace: str, spec: dict[str, Any]) -> str:
    """Return why the API server does not accept a job. Empty: it does."""
    metadata = {"name": NAME, "namespace": namespace}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        await api.create(TRAINING_JOB, job, namespace, dry_run=True)
    except (ClusterUnavailableError, ConflictError, ForbiddenError, MissingKindError) as error:
        return str(error)
    return ""
