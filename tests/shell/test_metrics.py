"""The numbers of a job come from its status and go with it; no input makes many labels."""

from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.metric_declarations import METRICS
from trainingjob_operator.shell.metrics import Metrics, WebhookMetrics
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app
from trainingjob_operator.shell.store import KindStore

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEFORE, AFTER = "2026-11-21T11:00:00Z", "2026-11-21T13:00:00Z"
STATUS = {
    "phase": "Running",
    "progress": {
        "step": 120,
        "of": 300,
        "loss": 2.5,
        "tokensPerSecond": 4100.0,
        "stepSeconds": 0.5,
        "mfu": 0.41,
        "dataLoadingShare": 0.2,
        "skipped": 2,
        "saveSeconds": 1.5,
    },
    "goodput": {"ratio": 0.9, "seconds": {"training": 90.0, "compiling": 6.0, "starting": 4.0}},
    "checkpoint": {"step": 100, "time": "2026-11-21T12:00:10.500Z"},
    "world": {"slices": [0, 1]},
    "straggler": {"slice": 1, "host": 0, "ratio": 0.4},
    "nodes": [{"node": "a", "faults": 1}, {"node": "b", "faults": 2}],
}
SLICES = {"min": 1, "max": 4}
J = {"namespace": "research", "name": "llama"}


class Jobs:
    """A shelf of jobs, with its metrics."""

    def __init__(self) -> None:
        self.shelf = KindStore(TRAINING_JOB)
        self.metrics = Metrics("1.2.3")
        self.metrics.register_jobs(self.shelf, START)
        self.version = 0

    def put(self, name: str = "llama", created: str = AFTER, **status: Any) -> dict[str, Any]:
        self.version += 1
        metadata = {"name": name, "namespace": "research", "uid": f"uid-{name}", "creationTimestamp": created}
        job = {"metadata": {**metadata, "resourceVersion": str(self.version)}, "status": status}
        job["spec"] = {"slices": SLICES}
        self.shelf.put(job)
        return job

    def read(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    found[frozenset(sample.labels.items())] = sample.value
        return found


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def labelled(value: float, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(labels.items()): value}


NUMBERS = {
    "trainingjob_jobs": labelled(1, namespace="research", phase="Running"),
    "trainingjob_step": labelled(120, **J),
    "trainingjob_steps": labelled(300, **J),
    "trainingjob_loss": labelled(2.5, **J),
    "trainingjob_tokens_per_second": labelled(4100, **J),
    "trainingjob_step_seconds": labelled(0.5, **J),
    "trainingjob_mfu_ratio": labelled(0.41, **J),
    "trainingjob_data_loading_ratio": labelled(0.2, **J),
    "trainingjob_skipped_steps": labelled(2, **J),
    "trainingjob_checkpoint_save_seconds": labelled(1.5, **J),
    "trainingjob_goodput_ratio": labelled(0.9, **J),
    "trainingjob_straggler_ratio": labelled(0.4, **J),
    "trainingjob_slices": labelled(2, **J),
    "trainingjob_wanted_slices": labelled(4, **J),
    "trainingjob_bad_nodes": labelled(1, **J),
    "trainingjob_lost_steps_total": labelled(0, **J),
    "trainingjob_checkpoint_last_commit_timestamp_seconds": labelled(START.timestamp() + 10.5, **J),
    "trainingjob_checkpoint_failing": labelled(0, **J),
    "trainingjob_backup_failing": labelled(0, **J),
    "trainingjob_export_failing": labelled(0, **J),
    "trainingjob_goodput_seconds": labelled(90, bucket="training", **J)
    | labelled(6, bucket="compiling", **J)
    | labelled(4, bucket="starting", **J),
    "trainingjob_build_info": labelled(1, version="1.2.3"),
}


@pytest.mark.parametrize(("name", "want"), NUMBERS.items(), ids=NUMBERS.keys())
def test_numbers_of_a_job(name: str, want: Any, jobs: Jobs) -> None:
    jobs.put(**STATUS)

    assert jobs.read(name) == want


def test_each_exported_metric_has_its_declaration(jobs: Jobs) -> None:
    registries = {"operator": jobs.metrics.registry, "webhook": WebhookMetrics("1.2.3").registry}

    for exporter, registry in registries.items():
        families = [family for family in registry.collect() if not family.name.startswith("process_")]
        exported = {
            (f"{one.name}_total" if one.type == "counter" else one.name, one.type, one.documentation)
            for one in families
        }
        assert exported == {(one.name, one.kind, one.meaning) for one in METRICS if exporter in one.exporters}


def test_declared_names_follow_prometheus() -> None:
    for metric in METRICS:
        assert metric.name.startswith("trainingjob_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.unit in ("seconds", "Unix seconds"))
        assert metric.name.endswith("_ratio") == (metric.unit == "ratio")


def test_a_job_that_cannot_save_is_counted(jobs: Jobs) -> None:
    jobs.put(**STATUS, failingSaves={"step": 120, "since": BEFORE, "message": "No space left on device"})

    assert jobs.read("trainingjob_checkpoint_failing") == labelled(1, **J)


def test_a_job_that_cannot_copy_is_counted(jobs: Jobs) -> None:
    jobs.put(**STATUS, failingCopies={"step": 120, "since": BEFORE, "message": "No space left on device"})

    assert jobs.read("trainingjob_backup_failing") == labelled(1, **J)
    assert jobs.read("trainingjob_checkpoint_failing") == labelled(0, **J)


def test_a_job_that_cannot_export_is_counted(jobs: Jobs) -> None:
    jobs.put(**STATUS, failingExports={"step": 120, "since": BEFORE, "message": "No space left on device"})

    assert jobs.read("trainingjob_export_failing") == labelled(1, **J)


def test_a_job_that_is_gone_takes_its_numbers_along(jobs: Jobs) -> None:
    gone = jobs.put(**STATUS, attempts=[{"generation": 1, "cause": {"reason": "NodeLost"}}])
    jobs.put("other", phase="Suspended")
    assert jobs.read("trainingjob_restarts_total")

    jobs.shelf.remove(gone)

    names = (*NUMBERS, "trainingjob_restarts_total")
    assert [name for name in names if any(("name", "llama") in labels for labels in jobs.read(name))] == []
    assert jobs.read("trainingjob_jobs") == labelled(1, namespace="research", phase="Suspended")
    jobs.put(created=AFTER)
    assert jobs.read("trainingjob_restarts_total") == {}, "a namesake starts at zero"


def test_a_job_without_a_status_is_new(jobs: Jobs) -> None:
    jobs.put()

    assert jobs.read("trainingjob_jobs") == labelled(1, namespace="research", phase="New")
    assert jobs.read("trainingjob_step") == {}


def attempts(*reasons: str) -> list[dict[str, Any]]:
    """Return attempts 1, 2, …; each ended for a reason, the one after them runs."""
    ended = [{"generation": number, "cause": {"reason": reason}} for number, reason in enumerate(reasons, 1)]
    return [*ended, {"generation": len(reasons) + 1}]


def test_each_end_of_a_world_counts_once(jobs: Jobs) -> None:
    jobs.put(attempts=attempts())
    assert jobs.read("trainingjob_restarts_total") == {}

    jobs.put(attempts=attempts("NodeLost"))
    jobs.read("trainingjob_restarts_total")
    jobs.put(attempts=attempts("NodeLost", "Crash", "NodeLost")[1:])
    jobs.read("trainingjob_restarts_total")

    assert jobs.read("trainingjob_restarts_total") == labelled(2, reason="NodeLost", **J) | labelled(
        1, reason="Crash", **J
    )


def test_lost_steps_of_each_attempt_count_once(jobs: Jobs) -> None:
    first = {"generation": 1, "lostSteps": 3}
    jobs.put(attempts=[first])
    assert jobs.read("trainingjob_lost_steps_total") == labelled(3, **J)

    jobs.put(attempts=[first, {"generation": 2}])
    jobs.read("trainingjob_lost_steps_total")
    jobs.put(attempts=[first, {"generation": 2, "lostSteps": 5}])

    assert jobs.read("trainingjob_lost_steps_total") == labelled(8, **J)


def test_lost_steps_before_this_process_are_left_out(jobs: Jobs) -> None:
    jobs.put(created=BEFORE, attempts=[{"generation": 1, "lostSteps": 3}])

    assert jobs.read("trainingjob_lost_steps_total") == labelled(0, **J)


def test_failed_requests_and_the_queue_are_exported(jobs: Jobs) -> None:
    jobs.metrics.record_api_error("503")
    jobs.metrics.record_api_error("503")
    jobs.metrics.register_queue(lambda: 3)
    jobs.metrics.register_unreadable_namespaces(lambda: 2)

    assert jobs.read("trainingjob_api_errors_total") == labelled(2, code="503")
    assert jobs.read("trainingjob_reconcile_queue_length") == labelled(3)
    assert jobs.read("trainingjob_unreadable_namespaces") == labelled(2)


def test_counts_of_an_earlier_process_are_not_added_again(jobs: Jobs) -> None:
    jobs.put(created=BEFORE, attempts=attempts("NodeLost", "Crash"))
    assert jobs.read("trainingjob_restarts_total") == {}

    jobs.put(created=BEFORE, attempts=attempts("NodeLost", "Crash", "Crash"))

    assert jobs.read("trainingjob_restarts_total") == labelled(1, reason="Crash", **J)


ODD = {
    "status is a list": {"status": [1]},
    "numbers are texts": {"status": {"progress": {"step": "many"}, "goodput": {"ratio": True, "seconds": [1]}}},
    "attempts are numbers": {"status": {"attempts": [1, {"generation": "x", "cause": 3}]}},
    "times are not": {"metadata": {"creationTimestamp": "soon"}, "status": {"checkpoint": {"time": 3}}},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_odd_statuses_break_no_scrape(odd: Any, jobs: Jobs) -> None:
    job = jobs.put("other", **STATUS)
    metadata = {**job["metadata"], "name": "odd", "uid": "uid-odd", **odd.get("metadata", {})}
    jobs.shelf.put({**job, **odd, "metadata": metadata})

    assert jobs.read("trainingjob_step") == labelled(120, namespace="research", name="other")


def test_a_ledger_that_moves_seconds_is_no_counter(jobs: Jobs) -> None:
    jobs.put(goodput={"seconds": {"training": 90.0, "lostSteps": 0.0}})
    jobs.put(goodput={"seconds": {"training": 70.0, "lostSteps": 20.0}})

    assert jobs.read("trainingjob_goodput_seconds") == labelled(70, bucket="training", **J) | labelled(
        20, bucket="lostSteps", **J
    )
    kinds = {family.name: family.type for family in jobs.metrics.registry.collect()}
    assert kinds["trainingjob_goodput_seconds"] == "gauge"


def test_buckets_are_ours(jobs: Jobs) -> None:
    seconds = {f"made-up-{number}": 1.0 for number in range(100)} | {bucket.value: 1.0 for bucket in Bucket}
    jobs.put(goodput={"seconds": seconds})

    buckets = {dict(labels)["bucket"] for labels in jobs.read("trainingjob_goodput_seconds")}
    assert buckets == {bucket.value for bucket in Bucket}


def test_the_operators_own_work(jobs: Jobs) -> None:
    jobs.metrics.record_reconcile(0.2, False)
    jobs.metrics.record_reconcile(0.3, True)

    assert jobs.read("trainingjob_reconcile_duration_seconds_count") == labelled(2)
    assert jobs.read("trainingjob_reconcile_errors_total") == labelled(1)
    assert jobs.read("trainingjob_webhook_duration_seconds_count") == {}


def test_operator_s_memory_is_a_metric(jobs: Jobs) -> None:
    assert (jobs.metrics.registry.get_sample_value("process_resident_memory_bytes") or 0) > 1e6


async def test_prometheus_can_read_them(jobs: Jobs) -> None:
    jobs.put(**STATUS)
    app = web.Application()
    MetricsEndpoint(jobs.metrics.registry).register(app)

    async with TestClient(TestServer(app)) as client, client.get("/metrics") as response:
        text = await response.text()

    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"trainingjob_step", "trainingjob_restarts", "trainingjob_build_info"} <= names
    assert all(name.startswith(("trainingjob_", "process_")) for name in names)


async def test_probes_report_the_cause(jobs: Jobs) -> None:
    trouble = {"/healthz": "", "/readyz": ""}
    app = health_app(lambda: trouble["/healthz"], lambda: trouble["/readyz"])

    async with TestClient(TestServer(app)) as client:
        for path in trouble:
            async with client.get(path) as response:
                assert (response.status, await response.text()) == (200, "ok\n")
            trouble[path] = "the feed is stuck"
            async with client.get(path) as response:
                assert (response.status, await response.text()) == (503, "the feed is stuck\n")
