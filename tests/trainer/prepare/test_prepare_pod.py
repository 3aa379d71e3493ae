"""Pods of the preparation phase as processes: they share the text, report to the operator, and end with a cause."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.trainer.json_server import JsonHandler, serve
from tests.support.trainer.texts import grow
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_agent.host_environment import read_environment
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Failure, FailureReason, HostReport, Phase
from trainingjob_api.world import RunConfig
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.token_cache import prepare_datasets
from trainingjob_trainer.prepare.prepare_pod import ProgressReporter, _describe_failure
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

MODULE = "trainingjob_trainer.prepare.prepare_pod"


class Operator:
    """The reports that pods have sent, and whether there is one."""

    def __init__(self, url: str, reports: list[HostReport], has_report: Event) -> None:
        self.url = url
        self.reports = reports
        self.has_report = has_report


@pytest.fixture
def operator() -> Iterator[Operator]:
    reports, has_report = list[HostReport](), Event()

    class Handler(JsonHandler):
        def do_POST(self) -> None:  # noqa: N802  # the name of the library
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reports.append(HostReport.model_validate_json(body))
            has_report.set()
            self.send_json({"directive": "wait"})

    with serve(Handler) as url:
        yield Operator(url, reports, has_report)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    grow(tmp_path / "text", **{"a.txt": "once upon a time", "b.txt": "there was a text"})
    (tmp_path / "checkpoints").mkdir()
    data = {"train": [{"name": "text", "path": str(tmp_path / "text")}], "prepare": {"parallelism": 2}}
    return make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text", data=data, training__sequenceLength=4))


def variables_of(tmp_path: Path, config: RunConfig, index: int, operator: Operator) -> dict[str, str]:
    """Return the environment of the pod with an index."""
    if not (tmp_path / "run.json").exists():
        (tmp_path / "run.json").write_text(config.model_dump_json(by_alias=True))
        (tmp_path / "token").write_text("token")
    variables = {
        "CONFIG": str(tmp_path / "run.json"),
        "RENDEZVOUS": operator.url,
        "TOKEN": str(tmp_path / "token"),
        "POD": f"prep-{index}",
        "POD_UID": f"uid-{index}",
        "ADDRESS": "127.0.0.1",
        "SLICE_OFFSET": "0",
        "JOB_INDEX": "0",
        "HOST": str(index),
        "TERMINATION_LOG": str(tmp_path / f"ended-{index}"),
    }
    return {f"TRAININGJOB_{name}": value for name, value in variables.items()}


def start(tmp_path: Path, config: RunConfig, index: int, operator: Operator) -> subprocess.Popen[bytes]:
    """Start the pod with an index."""
    environment = variables_of(tmp_path, config, index, operator)
    return subprocess.Popen([sys.executable, "-m", MODULE], env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.thorough
def test_pods_share_the_text_and_the_job_finds_its_tokens(
    tmp_path: Path, config: RunConfig, operator: Operator
) -> None:
    pods = [start(tmp_path, config, index, operator) for index in (1, 0)]

    assert [pod.wait(60) for pod in pods] == [0, 0]
    found = prepare_datasets(open_store(tmp_path / "checkpoints"), config, None)
    assert found.train.num_tokens == 34
    assert {report.pod_uid for report in operator.reports} <= {"uid-0", "uid-1"}, "a short pod may report nothing"


def test_a_report_has_the_newest_progress(tmp_path: Path, config: RunConfig, operator: Operator) -> None:
    reporter = ProgressReporter(read_environment(variables_of(tmp_path, config, 1, operator)))
    before = reporter.describe()
    reporter.progress = PreparationProgress(done_bytes=1, total_bytes=2)
    after = reporter.describe()

    assert (before.phase, before.preparation, before.standby) == (Phase.PREPARING, None, False)
    assert (after.preparation, after.instance) == (reporter.progress, before.instance)
    assert (after.job_uid, after.pod, after.pod_uid, after.host) == (config.job.uid, "prep-1", "uid-1", 1)


@pytest.mark.thorough
def test_a_text_that_is_missing_ends_the_pod_with_its_cause(
    tmp_path: Path, config: RunConfig, operator: Operator
) -> None:
    for file in (tmp_path / "text").iterdir():
        file.unlink()

    assert start(tmp_path, config, 0, operator).wait(60) == 1
    failure = Failure.model_validate_json((tmp_path / "ended-0").read_text())
    assert (failure.reason, failure.fatal, failure.path) == (FailureReason.DATA, True, "spec.data.train[0].pattern")


@pytest.mark.thorough
def test_the_folder_of_another_job_is_refused_before_the_text_is_read(
    tmp_path: Path, config: RunConfig, operator: Operator
) -> None:
    (tmp_path / "checkpoints/OWNER").write_text(json.dumps({"uid": "other", "job": "research/other"}) + "\n")

    assert start(tmp_path, config, 0, operator).wait(60) == 1
    failure = Failure.model_validate_json((tmp_path / "ended-0").read_text())
    assert (failure.reason, failure.path) == (FailureReason.CONFIG, "spec.checkpoint.uri")
    assert not (tmp_path / "checkpoints/data").exists()


@pytest.mark.thorough
def test_a_pod_that_is_deleted_ends_at_once(tmp_path: Path, config: RunConfig, operator: Operator) -> None:
    waits = start(tmp_path, config, 1, operator)
    assert operator.has_report.wait(60)
    assert (operator.reports[0].pod_uid, operator.reports[0].phase) == ("uid-1", Phase.PREPARING)

    waits.send_signal(signal.SIGTERM)

    assert waits.wait(10) == 143


@pytest.mark.thorough
def test_an_invalid_environment_is_described(tmp_path: Path) -> None:
    words = tmp_path / "ended"
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        env={"TRAININGJOB_TERMINATION_LOG": str(words)},
        check=False,
        capture_output=True,
    )

    assert done.returncode == 78
    assert "TRAININGJOB_POD: must be set." in words.read_text()


@pytest.mark.thorough
def test_an_unreachable_operator_stops_nothing(tmp_path: Path, config: RunConfig) -> None:
    nobody = Operator("http://127.0.0.1:9", [], Event())
    spec: Any = config.spec.model_copy(update={"data": config.spec.data.model_copy(update={"prepare": None})})
    alone = config.model_copy(update={"spec": spec})

    assert start(tmp_path, alone, 0, nobody).wait(60) == 0
    assert prepare_datasets(open_store(tmp_path / "checkpoints"), alone, HostShare()).train.num_tokens == 34


def test_the_field_for_memory_is_that_of_the_preparation() -> None:
    words = "a process that tokenizes text was killed. Raise spec.runtime.resources.memory if it happens again."
    error = TrainingError(FailureReason.CRASH, words, path="spec.runtime.resources.memory", fatal=False)

    failure = _describe_failure(error)

    assert failure.path == "spec.data.prepare.resources.memory"
    assert "Raise spec.data.prepare.resources.memory if" in failure.message
