"""MLflow, by its REST API: MLflow's own client would add a web framework and a cloud SDK to the image.

The server chooses the id of a run. Each world finds the run of its job by a tag with the job's UID, so that all worlds
continue one run. MLflow appends to the history of a metric. So `generation` separates the points of a step that was
trained again.

Source: MLflow 3 REST API, `/api/2.0/mlflow`.
"""

import os
import time
from base64 import b64encode
from typing import Any
from urllib.parse import quote

from trainingjob_api.spec.metrics import MLflow
from trainingjob_trainer.trackers.json_api import JsonApi, RejectedRequestError
from trainingjob_trainer.trackers.tracker import Point, Run

UID_TAG = "trainingjob.uid"
MAX_TAG_LENGTH = 5000
"""Characters of the longest value of a tag in MLflow before 2.16; later servers take longer ones."""


def create_tracker(settings: MLflow, run: Run) -> "MLflowRun":
    """Return the tracker of `metrics.mlflow`."""
    return MLflowRun(settings, run)


class MLflowError(Exception):
    """The server rejects a request. `code` is MLflow's error code; empty: the answer has none."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class MLflowRun:
    """The run of a job."""

    def __init__(self, settings: MLflow, run: Run) -> None:
        self._settings = settings
        self._job = run.job
        self._server = _Server(settings.tracking_uri)
        self._run_id = ""

    def connect(self) -> None:
        """Find or create the experiment and the job's run.

        Raises:
            MLflowError: the server rejects the credentials or the experiment.
            UnreachableError: the server cannot be reached.
        """
        experiment = self._find_experiment() or self._create_experiment()
        found = self._server.call(
            "runs/search",
            {"experiment_ids": [experiment], "filter": f"tags.`{UID_TAG}` = '{self._job.uid}'", "max_results": 1},
        ).get("runs")
        if found:
            self._run_id = found[0]["info"]["run_id"]
            self._server.call("runs/update", {"run_id": self._run_id, "status": "RUNNING"})
        else:
            self._run_id = self._create_run(experiment)

    def write(self, point: Point) -> None:
        """Send the values of a step. A text replaces the one of an earlier step: MLflow has a history of numbers only.

        Raises:
            MLflowError: the server rejects the values.
            UnreachableError: the server cannot be reached.
        """
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        at = {"timestamp": round(point.time * 1000), "step": point.step}
        tags = {f"{point.group}/{name}": text[:MAX_TAG_LENGTH] for name, text in point.texts.items()}
        batch = {
            "run_id": self._run_id,
            "metrics": [
                {"key": key, "value": value, **at} for key, value in {"generation": point.generation, **values}.items()
            ],
            "tags": _list_pairs(tags),
        }
        self._server.call("runs/log-batch", batch)

    def close(self) -> None:
        """Mark the run as finished. The next world of the job marks it as running again.

        Raises:
            MLflowError: the server rejects the change.
            UnreachableError: the server cannot be reached.
        """
        end = {"run_id": self._run_id, "status": "FINISHED", "end_time": round(time.time() * 1000)}
        self._server.call("runs/update", end)

    def _find_experiment(self) -> str | None:  # None: there is no such experiment
        name = quote(self._settings.experiment, safe="")
        try:
            found = self._server.call(f"experiments/get-by-name?experiment_name={name}")
        except MLflowError as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return str(found["experiment"]["experiment_id"])

    def _create_experiment(self) -> str:
        return str(self._server.call("experiments/create", {"name": self._settings.experiment})["experiment_id"])

    def _create_run(self, experiment: str) -> str:
        tags = {UID_TAG: self._job.uid, "trainingjob.namespace": self._job.namespace, **self._settings.tags}
        run = {
            "experiment_id": experiment,
            "run_name": self._settings.run_name or self._job.name,
            "start_time": round(time.time() * 1000),
            "tags": _list_pairs(tags),
        }
        return str(self._server.call("runs/create", run)["run"]["info"]["run_id"])


class _Server:
    """A tracking server. Credentials come from the environment, where the pod has those of the Secret."""

    def __init__(self, uri: str) -> None:
        self._api = JsonApi(f"{uri.rstrip('/')}/api/2.0/mlflow", _make_authorization())

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a request: a GET without a body, else a POST.

        Raises:
            MLflowError: the server rejects it, or the answer is not MLflow's.
            UnreachableError: the server cannot be reached.
        """
        try:
            answer = self._api.call(path, body)
        except RejectedRequestError as error:
            raise MLflowError(str(error), str(error.answer.get("error_code", ""))) from None
        if answer is None:
            raise MLflowError("the answer is not JSON: `metrics.mlflow.trackingUri` is not an MLflow server")
        return answer


def _make_authorization() -> dict[str, str]:
    """Return the header with the credentials, as MLflow's client makes it."""
    token, user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("TOKEN", "USERNAME", "PASSWORD"))
    if user and password:
        return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _list_pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
