"""MLflow: the tracker against a server on loopback that checks requests as MLflow does."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.mlflow_server import MLflowServer, Refusal, serve_mlflow
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.world import JobIdentity
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.trackers import tracker
from trainingjob_trainer.trackers.metrics_file import MetricsWriter, TextOfPrompt
from trainingjob_trainer.trackers.tracker import Run

TOKEN = "canary-0123456789abcdef"
UID = "11111111-2222-3333-4444-555555555555"
JOB = JobIdentity(name="demo", namespace="research", uid=UID)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    monkeypatch.setattr(tracker, "CLOSE_SECONDS", ENDLESS_SECONDS)


def make_metrics(url: str, **options: Any) -> Metrics:
    return Metrics(mlflow={"trackingUri": url, "experiment": "my research", **options}, tensorboard=False)


def train(root: Path, metrics: Metrics, generation: int, *steps: int) -> None:
    """Write what a world of the job writes."""
    with MetricsWriter(metrics, Run(JOB, open_store(str(root)), 0), generation) as writer:
        for step in steps:
            at = 100 * generation + step + 0.5
            writer.write_step({"time": at, "generation": generation, "step": step, "loss": 1.0 / step})


def points_of(server: MLflowServer, key: str) -> list[tuple[int, float]]:
    return [(step, value) for name, value, _, step in server.metrics[server.runs[0]["id"]] if name == key]


def test_worlds_of_a_job_continue_one_run_and_repeat_the_steps_that_they_train_again(tmp_path: Path) -> None:
    with serve_mlflow() as server:
        metrics = make_metrics(server.url, tags={"size": "7b"})
        train(tmp_path, metrics, 1, 1, 2, 4)
        train(tmp_path, metrics, 2, 4, 5)

    (run,) = server.runs
    assert server.experiments == ["my research"]
    assert (run["name"], run["status"]) == ("demo", "FINISHED")
    assert run["tags"] == {"trainingjob.uid": UID, "trainingjob.namespace": "research", "size": "7b"}
    assert points_of(server, "train/loss") == [(1, 1.0), (2, 0.5), (4, 0.25), (4, 0.25), (5, 0.2)]
    assert points_of(server, "generation") == [(1, 1), (2, 1), (4, 1), (4, 2), (5, 2)]
    assert {at - 1000 * step for _, _, at, step in server.metrics[run["id"]]} == {100_500, 200_500}
    assert server.headers == {f"Bearer {TOKEN}"}


def test_evaluations_and_texts_are_sent(tmp_path: Path) -> None:
    with serve_mlflow() as server:
        metrics = make_metrics(server.url, runName="baseline")
        with MetricsWriter(metrics, Run(JOB, open_store(str(tmp_path)), 0), 1, has_samples=True) as writer:
            writer.write_evaluation(7, "held", {"loss": 1.25})
            writer.write_sample(7, TextOfPrompt("held", 0, "Once ", "x" * 6000, 6000, None))

    (run,) = server.runs
    assert run["name"] == "baseline"
    assert points_of(server, "held_out/held/held_out_loss") == [(7, 1.25)]
    assert run["tags"]["held_out/held/sample_0"] == ("Once " + "x" * 6000)[:5000]


def test_a_user_and_a_password_are_sent_as_basic_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", TOKEN)
    header = "Basic " + b64encode(f"ann:{TOKEN}".encode()).decode()
    with serve_mlflow(accepts=header) as server:
        train(tmp_path, make_metrics(server.url), 1, 1)

    assert points_of(server, "train/loss") == [(1, 1.0)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "HTTP 401: You are not authenticated."),
        ("/other", "the answer is not JSON: `metrics.mlflow.trackingUri` is not an MLflow server"),
    ],
)
def test_a_refusal_costs_the_points_and_one_warning_without_the_token(
    path: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MLflowServer, "answer", lambda *_: "text")
    with serve_mlflow(accepts="" if path else "Bearer other") as server:
        train(tmp_path, make_metrics(server.url + path), 1, 1)

    assert caplog.messages == [
        f"tracker connect failed tracker=mlflow error={message}",
        "last metrics not sent tracker=mlflow",
    ]
    assert TOKEN not in caplog.text


@pytest.mark.thorough
def test_a_redirect_takes_the_token_to_no_other_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve_mlflow() as other, serve_mlflow(redirects_to=other.url) as server:
        train(tmp_path, make_metrics(server.url), 1, 1)

    assert other.headers == set()
    assert caplog.messages[0].startswith("tracker connect failed tracker=mlflow error=HTTP 307")


def test_an_unreachable_server_costs_the_points_and_a_later_world_sends_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_mlflow() as server:
        train(tmp_path, make_metrics("http://127.0.0.1:9"), 1, 1, 2)
        train(tmp_path, make_metrics(server.url), 2, 3)

    assert caplog.messages[0].startswith("tracker connect failed tracker=mlflow error=")
    assert points_of(server, "train/loss") == [(3, 1 / 3)]
    assert len((tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_no_point_is_lost_while_the_server_is_not_ready(
    status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, not_ready = MLflowServer.answer, [True]

    def refuse_first_batch(server: MLflowServer, method: str, path: str, *rest: Any) -> dict[str, Any]:
        if path == "runs/log-batch" and not_ready:
            not_ready.pop()
            raise Refusal(status, "", "try again")
        return answer(server, method, path, *rest)

    monkeypatch.setattr(MLflowServer, "answer", refuse_first_batch)
    with serve_mlflow() as server:
        train(tmp_path, make_metrics(server.url), 1, 1, 2)

    assert points_of(server, "train/loss") == [(1, 1.0), (2, 0.5)]
    assert caplog.messages == [f"tracker write failed tracker=mlflow error=HTTP {status}: try again"]


def test_no_point_is_lost_where_the_server_closes_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, restarts = MLflowServer.answer, [True]

    def close_first_batch(server: MLflowServer, method: str, path: str, *rest: Any) -> dict[str, Any]:
        if path == "runs/log-batch" and restarts:
            restarts.pop()
            raise ConnectionResetError
        return answer(server, method, path, *rest)

    monkeypatch.setattr(MLflowServer, "answer", close_first_batch)
    with serve_mlflow() as server:
        train(tmp_path, make_metrics(server.url), 1, 1, 2)

    assert points_of(server, "train/loss") == [(1, 1.0), (2, 0.5)]
