"""The numbers of a job come from its status and go with it; no input makes many labels."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from tests.support.job_metrics import AFTER, BEFORE, START, STATUS, J, Jobs, labelled, restarted
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.shell.metric_declarations import METRICS
from trainingjob_operator.shell.metrics import WebhookMetrics
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


NUMBERS = {
    "trainingjob_jobs": labelled(1, namespace="research", phase="Running"),
    "trainingjob_phase": labelled(1, phase="Running", **J),
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
    gone = jobs.put(**STATUS, **restarted("NodeLost"))
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
    assert jobs.read("trainingjob_phase") == labelled(1, phase="New", **J)
    assert jobs.read("trainingjob_slices") == labelled(0, **J)
    assert jobs.read("trainingjob_step") == {}


def test_failed_requests_and_the_queue_are_exported(jobs: Jobs) -> None:
    jobs.metrics.record_api_error("503")
    jobs.metrics.record_api_error("503")
    jobs.metrics.register_queue(lambda: 3)
    jobs.metrics.register_unreadable_namespaces(lambda: 2)

    assert jobs.read("trainingjob_api_errors_total") == labelled(2, code="503")
    assert jobs.read("trainingjob_reconcile_queue_length") == labelled(3)
    assert jobs.read("trainingjob_unreadable_namespaces") == labelled(2)


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
    jobs.put(goodput={"seconds": {"made-up": 1.0} | {bucket.value: 1.0 for bucket in Bucket}})
    jobs.put("other", goodput={"seconds": {f"made-up-{number}": 1.0 for number in range(100)}})

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
