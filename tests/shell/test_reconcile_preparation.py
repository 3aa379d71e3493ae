"""The preparation phase over a job's life: created, complete, suspended, failed, and never repeated."""

from typing import Any

from tests.support.builders import NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Failure, FailureReason, HostReport, Phase
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import preparation_job
from trainingjob_operator.shell.interfaces import Caller

JOB = ("Job", preparation_job(NAME, UID))
DATA = {"train": [{"name": "text", "path": "/shared/text"}], "prepare": {"parallelism": 2}}


def simulation() -> Simulation:
    return Simulation({"data": DATA})


def put_pod(sim: Simulation, **container: Any) -> Manifest:
    """Let the controller of Jobs create a pod, which runs."""
    job = sim.cluster.objects[JOB]
    return sim.cluster.put(
        {
            "kind": "Pod",
            "metadata": {
                "name": "prep-0",
                "labels": dict(job["metadata"]["labels"]),
                "ownerReferences": [{"controller": True, "uid": job["metadata"]["uid"]}],
            },
            "spec": {"nodeName": "cpu-1"},
            "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}, **container}]},
        }
    )


def complete(sim: Simulation) -> None:
    job = sim.cluster.objects[JOB]
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}], "completionTime": "2026-11-21T12:00:00Z"}
    sim.cluster.touch(job)
    sim.due = sim.time.seconds


async def test_slices_are_requested_after_the_text_is_tokenized() -> None:
    sim = simulation()
    await sim.run(3)

    assert (sim.status.phase, sim.condition("Running")) == ("Preparing", ("False", "Preparing"))
    assert sim.cluster.objects[JOB]["spec"]["parallelism"] == 2
    assert sim.cluster.all("ConfigMap")
    assert not sim.cluster.all("JobSet")
    complete(sim)
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert sim.status.prepared
    assert "preparing" in sim.status.goodput.seconds


async def test_the_progress_of_the_pods_reaches_the_status() -> None:
    sim = simulation()
    await sim.run(2)
    uid = put_pod(sim)["metadata"]["uid"]
    report = HostReport(
        job_uid=UID,
        pod="prep-0",
        pod_uid=uid,
        slice=0,
        host=0,
        address="10.0.0.9",
        instance="a",
        port=1,
        standby=False,
        phase=Phase.PREPARING,
        preparation=PreparationProgress(done_bytes=1_000_000, total_bytes=4_000_000, documents=3, tokens=250_000),
    )
    sim.hub.receive(Caller(uid, NAMESPACE, NAME, UID), report)
    await sim.run(11)

    running = next(one for one in sim.status.conditions if one.type == "Running")
    assert running.message == "tokenizing the text: 1 MB of 4 MB (25%), 3 documents, 250 k tokens"
    assert sim.status.preparation == report.preparation


async def test_a_suspension_deletes_the_preparation_and_a_resumption_creates_it_again() -> None:
    sim = simulation()
    await sim.run(2)
    before = sim.cluster.objects[JOB]["metadata"]["uid"]
    sim.edit(suspend=True)
    await sim.run(8)
    suspended = sim.status.phase, JOB in sim.cluster.objects
    sim.edit(suspend=False)
    await sim.run(5)

    assert suspended == ("Suspended", False)
    assert sim.cluster.objects[JOB]["metadata"]["uid"] != before


async def test_a_missing_text_fails_the_job_with_its_cause() -> None:
    sim = simulation()
    await sim.run(2)
    failure = Failure(reason=FailureReason.DATA, fatal=True, message="/shared/text is not there on this host.")
    ended = {"exitCode": 1, "message": failure.model_dump_json(exclude_defaults=True)}
    put_pod(sim, restartCount=1, lastState={"terminated": ended})
    await sim.run(10, until="Failed")

    failed = next(one for one in sim.status.conditions if one.type == "Failed")
    assert (failed.reason, failed.message.splitlines()[0]) == (
        "Data",
        "tokenizing the text failed: /shared/text is not there on this host.",
    )
    await sim.run(5)
    assert JOB not in sim.cluster.objects


async def test_a_new_operator_does_not_repeat_the_preparation() -> None:
    sim = simulation()
    await sim.run(2)
    complete(sim)
    await sim.run(3)
    del sim.cluster.objects[JOB]  # its time to live has passed
    sim.restart_operator()
    await sim.run(5)

    assert JOB not in sim.cluster.objects
    assert sim.cluster.all("JobSet")
