"""Trackio, by the HTTP API of its server: the package `trackio` would add a web server and its client to the image.

The id of a run is the UID of the job, so that all worlds continue one run. Each point has an id, too: the server
ignores a point that it already holds. `generation` separates the points of a step that was trained again.

Source: Trackio 0.43, `trackio/asgi_app.py` and `trackio/server.py`.
"""

import os
from datetime import UTC, datetime
from typing import Any

from trainingjob_api.spec.metrics import Trackio
from trainingjob_trainer.trackers.json_api import JsonApi
from trainingjob_trainer.trackers.tracker import Point, Run, quote_markdown

API_VERSION = 1


def create_tracker(settings: Trackio, run: Run) -> "TrackioRun":
    """Return the tracker of `metrics.trackio`."""
    return TrackioRun(settings, run)


class TrackioError(Exception):
    """The address is not that of a Trackio server with this API."""


class TrackioRun:
    """The run of a job."""

    def __init__(self, settings: Trackio, run: Run) -> None:
        self._settings = settings
        self._job = run.job
        self._server = JsonApi(settings.address, _make_credentials(settings))
        self._config: dict[str, Any] | None = None

    def connect(self) -> None:
        """Check that the server has the API.

        Raises:
            TrackioError: it has not.
            RejectedRequestError: the server rejects the request.
            UnreachableError: the server cannot be reached.
        """
        version = (self._server.call("version") or {}).get("api_version")
        if version != API_VERSION:
            address = self._settings.address
            raise TrackioError(f"{address} is not a Trackio server with version {API_VERSION} of the API")
        self._config = {
            "_Created": datetime.now(UTC).isoformat(),
            "_Group": self._job.namespace,
            "trainingjob.uid": self._job.uid,
        }

    def write(self, point: Point) -> None:
        """Send the values and texts of a step.

        Raises:
            RejectedRequestError: the server rejects the token or the values.
            UnreachableError: the server cannot be reached.
        """
        texts = {
            name: {"_type": "trackio.markdown", "_value": quote_markdown(text)} for name, text in point.texts.items()
        }
        values = {f"{point.group}/{name}": value for name, value in {**point.values, **texts}.items()}
        place = (self._job.uid, point.generation, point.step, point.group, *point.texts)
        log = {
            "project": self._settings.project,
            "run": self._settings.name or self._job.name,
            "run_id": self._job.uid,
            "step": point.step,
            "metrics": {"generation": point.generation, **values},
            "config": self._config,
            "log_id": "/".join(map(str, place)),
        }
        self._server.call("api/bulk_log", {"kwargs": {"logs": [log], "hf_token": None}})
        self._config = None

    def close(self) -> None:
        """Do nothing: a run has no end."""


def _make_credentials(settings: Trackio) -> dict[str, str]:
    """Return the header with the token. A Space takes the token of a user, and any other server its own."""
    token = os.environ.get("TRACKIO_WRITE_TOKEN", "")
    return {"Authorization": f"Bearer {token}"} if settings.space else {"X-Trackio-Write-Token": token}
