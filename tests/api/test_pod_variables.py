"""Variables of the pods: those of `runtime.env`, then one for each secret of a section."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from tests.support.builders import spec_manifest
from trainingjob_api.base import KeyRef, Secret, SecretVariable, Strict
from trainingjob_api.pod_variables import find_secret_fields, pod_variables
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.metrics import Metrics

KEY = KeyRef(name="keys", key="token")


class Server(Strict):
    api_key: Annotated[Secret, SecretVariable("SERVER_KEY")] = Field(description="Key of the server.")


class Tracked(Metrics):
    server: Server | None = None
    other: Annotated[Secret | None, SecretVariable("OTHER_KEY")] = None


class Job(TrainingJobSpec):
    metrics: Tracked = Tracked()


def test_each_secret_that_is_set_has_its_variable_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_api.pod_variables.SECRET_FIELDS", tuple(find_secret_fields(Job)))
    key = {"secretKeyRef": {"name": "keys", "key": "token"}}

    def names(**metrics: Any) -> list[tuple[str, str, KeyRef | None]]:
        found = pod_variables(Job.model_validate(spec_manifest(metrics=metrics)))
        return [(path, variable.name, variable.secret_key_ref) for path, variable in found]

    server, other = ("metrics.server.apiKey", "SERVER_KEY", KEY), ("metrics.other", "OTHER_KEY", KEY)
    assert names() == []
    assert names(server={"apiKey": key}) == [server]
    assert names(server={"apiKey": key}, other=key) == [server, other]


def test_variables_of_the_runtime_come_first_with_their_index() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    spec = TrainingJobSpec.model_validate(spec_manifest(runtime={"env": env}))

    assert [(path, variable.name) for path, variable in pod_variables(spec)] == [
        ("runtime.env[0]", "A"),
        ("runtime.env[1]", "B"),
    ]
