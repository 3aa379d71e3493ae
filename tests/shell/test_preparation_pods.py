"""A pod of the preparation phase proves its job by the Job that the TrainingJob owns."""

from typing import Any

import pytest

from tests.shell.test_authentication import TOKEN, accept, owned_by, put
from trainingjob_api.spec.job import KIND
from trainingjob_operator.shell.authentication import PodAuthenticator
from trainingjob_operator.shell.interfaces import UnauthenticatedCallerError
from trainingjob_operator.shell.kinds import JOB, POD, TRAINING_JOB


@pytest.fixture(autouse=True)
def job(api_server: Any) -> None:
    put(api_server, TRAINING_JOB, "llama", {"uid": "job-uid"})


def put_preparation(api_server: Any, owner: dict[str, Any]) -> dict[str, Any]:
    """Put a Job with an owner, and a pod of it; return the pod."""
    job = put(api_server, JOB, "llama-prep", owner)
    return put(api_server, POD, "llama-prep-0", owned_by(JOB, "llama-prep", job["metadata"]["uid"]))


async def test_a_pod_that_tokenizes_text_is_known(authenticator: PodAuthenticator, api_server: Any) -> None:
    accept(api_server, put_preparation(api_server, owned_by(TRAINING_JOB, "llama", "job-uid")))

    assert (await authenticator.authenticate(TOKEN)).job_uid == "job-uid"


@pytest.mark.parametrize(
    "owner", [owned_by(TRAINING_JOB, "llama", "old"), owned_by(TRAINING_JOB, "llama", "job-uid", controller=False), {}]
)
async def test_a_job_of_another_owner_proves_nothing(
    owner: Any, authenticator: PodAuthenticator, api_server: Any
) -> None:
    accept(api_server, put_preparation(api_server, owner))

    with pytest.raises(UnauthenticatedCallerError, match=f"does not belong to a {KIND}"):
        await authenticator.authenticate(TOKEN)
