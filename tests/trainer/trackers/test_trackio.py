"""Trackio: the tracker against a server on loopback that answers as Trackio does."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.trackio_server import TrackioServer, serve_trackio
from trainingjob_api.spec.metrics import Metrics, Trackio
from trainingjob_api.world import JobIdentity
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.trackers import tracker
from trainingjob_trainer.trackers.metrics_file import MetricsWriter, TextOfPrompt
from trainingjob_trainer.trackers.tracker import Run
from trainingjob_trainer.trackers.trackio import create_tracker

TOKEN = "canary-0123456789abcdef"
UID = "11111111-2222-3333-4444-555555555555"
JOB = JobIdentity(name="demo", namespace="team", uid=UID)
REFERENCE = {"secretKeyRef": {"name": "keys", "key": "token"}}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", TOKEN)
    monkeypatch.setattr(tracker, "CLOSE_SECONDS", ENDLESS_SECONDS)


def make_metrics(url: str, **options: Any) -> Metrics:
    settings = {"project": "research", "serverUrl": url, "token": REFERENCE, **options}
    return Metrics.model_validate({"trackio": settings, "tensorboard": False})


def train(root: Path, metrics: Metrics, generation: int, *steps: int) -> None:
    """Write what a world of the job writes."""
    with MetricsWriter(metrics, Run(JOB, open_store(str(root)), 0), generation) as writer:
        for step in steps:
            writer.write_step({"time": 1.5, "generation": generation, "step": step, "loss": 1.0 / step})


def points_of(server: TrackioServer, key: str) -> list[tuple[Any, ...]]:
    (run,) = server.runs.values()
    return [(one["step"], one["metrics"]["generation"], one["metrics"].get(key)) for one in run]


def test_worlds_of_a_job_continue_one_run_and_repeat_the_steps_that_they_train_again(tmp_path: Path) -> None:
    with serve_trackio(token=TOKEN) as server:
        train(tmp_path, make_metrics(server.url), 1, 1, 2, 4)
        train(tmp_path, make_metrics(server.url + "/"), 2, 4, 5)

    assert list(server.runs) == [("research", UID)]
    assert points_of(server, "train/loss") == [(1, 1, 1.0), (2, 1, 0.5), (4, 1, 0.25), (4, 2, 0.25), (5, 2, 0.2)]
    assert {one["run"] for one in server.runs["research", UID]} == {"demo"}
    configs = [one["config"] for one in server.runs["research", UID]]
    assert [bool(config) for config in configs] == [True, False, False, True, False]
    assert (configs[0]["_Group"], configs[0]["trainingjob.uid"]) == ("team", UID)


def test_a_point_that_is_sent_again_is_held_once(tmp_path: Path) -> None:
    with serve_trackio(token=TOKEN) as server:
        train(tmp_path, make_metrics(server.url), 1, 1, 2)
        train(tmp_path, make_metrics(server.url), 1, 2, 3)

    assert points_of(server, "train/loss") == [(1, 1, 1.0), (2, 1, 0.5), (3, 1, 1 / 3)]


def test_evaluations_and_texts_are_sent(tmp_path: Path) -> None:
    with serve_trackio(token=TOKEN) as server:
        metrics = make_metrics(server.url, name="baseline")
        with MetricsWriter(metrics, Run(JOB, open_store(str(tmp_path)), 0), 1, has_samples=True) as writer:
            writer.write_evaluation(7, "held", {"loss": 1.25})
            writer.write_sample(7, TextOfPrompt("held", 0, "Once ", "upon", 1, None))
            writer.write_sample(7, TextOfPrompt("held", 1, "# Two", "\n", 1, None))

    (run,) = server.runs.values()
    assert {one["run"] for one in run} == {"baseline"}
    assert points_of(server, "held_out/held/held_out_loss") == [(7, 1, 1.25), (7, 1, None), (7, 1, None)]
    assert run[1]["metrics"]["held_out/held/sample_0"] == {"_type": "trackio.markdown", "_value": "    Once upon\n"}
    assert run[2]["metrics"]["held_out/held/sample_1"] == {"_type": "trackio.markdown", "_value": "    # Two\n"}


@pytest.mark.parametrize(
    ("options", "action", "message"),
    [
        ({"token": "other"}, "write", "HTTP 400: A write_token is required to log metrics or upload to this server."),
        ({"api_version": 2}, "connect", "{url} is not a Trackio server with version 1 of the API"),
    ],
)
def test_a_refusal_costs_the_points_and_one_warning_without_the_token(
    options: dict[str, Any], action: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_trackio(**options) as server:
        train(tmp_path, make_metrics(server.url), 1, 1, 2)

    assert caplog.messages[0] == f"tracker {action} failed tracker=trackio error={message.format(url=server.url)}"
    assert (server.runs, TOKEN in caplog.text) == ({}, False)
    assert len((tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_space_is_reached_at_its_address_with_the_token_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Trackio.model_validate({"project": "research", "space": "My_Team/metrics.v2", "token": REFERENCE})
    assert space.address == "https://my-team-metrics-v2.hf.space"

    with serve_trackio() as server:
        monkeypatch.setattr(Trackio, "address", server.url)
        run = create_tracker(space, Run(JOB, open_store(str(tmp_path)), 0))
        run.connect()
        with pytest.raises(Exception, match="write_token"):
            run.write(tracker.Point("train", 1, 1, 0.0, {"loss": 1.0}))

    assert server.headers[0]["authorization"] == f"Bearer {TOKEN}"
    assert "x-trackio-write-token" not in server.headers[0]
