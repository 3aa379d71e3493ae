"""The preparation phase: pods without accelerators tokenize the text before slices are requested."""

import json
from typing import Any

import pytest

from tests.support.builders import NAME, UID, make_plan, make_report
from tests.support.scenes import Scene, kind
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Failure, FailureReason, Phase
from trainingjob_api.status.training_job_status import Condition
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreatePreparation, DeletePreparation
from trainingjob_operator.core.decide.decisions import Fail, Wait
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import preparation_job
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_status import next_status

DATA = {"data": {"train": [{"name": "text", "path": "/shared/text"}], "prepare": {"parallelism": 2}}}
HALF = PreparationProgress(done_bytes=5, total_bytes=10, documents=1, tokens=7)
HALF_TEXT = "tokenizing the text: 5 B of 10 B (50%), 1 documents, 7 tokens"
FATAL = Failure(
    reason=FailureReason.DATA, fatal=True, message="a.txt is not UTF-8 text.", path="spec.data.train[0].path"
)
CRASH = Failure(reason=FailureReason.CRASH, message="ValueError: bad")


def job_of(*, complete: bool = False, suspend: bool = False, **metadata: Any) -> Manifest:
    conditions = [{"type": "Complete", "status": "True"}] if complete else []
    return {
        "metadata": {
            "name": preparation_job(NAME, UID),
            "uid": "prep",
            "ownerReferences": [{"controller": True, "uid": UID}],
            **metadata,
        },
        "spec": {"suspend": suspend},
        "status": {"conditions": conditions},
    }


def pod_of(
    index: int = 0, *, restarts: int = 0, failure: Failure | str = "", reason: str = "", **status: Any
) -> Manifest:
    """Return a pod that runs, after failures if there are some."""
    message = failure if isinstance(failure, str) else failure.model_dump_json(exclude_defaults=True)
    ended = {"lastState": {"terminated": {"exitCode": 1, "message": message, "reason": reason}}} if restarts else {}
    return {
        "metadata": {
            "name": f"demo-prep-{index}",
            "uid": f"prep-{index}",
            "ownerReferences": [{"controller": True, "uid": "prep"}],
        },
        "spec": {"nodeName": "cpu-1"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"state": {"running": {}}, "restartCount": restarts, **ended}],
            **status,
        },
    }


def scene_of(*pods: Manifest, job: Manifest | None = None, **sections: Any) -> Scene:
    scene = Scene(plan=make_plan(**DATA, **sections))
    scene.preparation = job or job_of()
    scene.preparation_pods = list(pods)
    return scene


def running(scene: Scene) -> Condition:
    return next(one for one in scene.status.conditions if one.type == "Running")


def test_the_text_is_tokenized_before_slices_are_requested() -> None:
    scene = Scene(plan=make_plan(**DATA))

    assert scene.chores() == (CreatePreparation(),)
    assert scene.step() == Wait(Reason.PREPARING, "the pods that tokenize the text are being created")
    assert (scene.status.phase, scene.status.goodput.current) == ("Preparing", "preparing")
    queued = next(one for one in scene.status.conditions if one.type == "Queued")
    assert (queued.status, queued.reason) == ("False", Reason.PREPARING)


def test_a_job_without_a_preparation_has_no_phase() -> None:
    scene = Scene()

    assert scene.chores() == (CreateBase(),)


def test_progress_comes_from_the_pods() -> None:
    scene = scene_of(pod_of(0), pod_of(1))
    scene.step()
    before = running(scene).message
    scene.news = {
        "prep-0": LatestReport(make_report(pod_uid="prep-0", phase=Phase.PREPARING, preparation=HALF), 1.0, 1.0),
        "prep-1": LatestReport(make_report(pod_uid="prep-1", phase=Phase.PREPARING), 0.5, 0.5),
    }
    scene.step(1.0)

    assert before == "tokenizing the text"
    assert (running(scene).reason, running(scene).message) == (Reason.PREPARING, HALF_TEXT)
    assert scene.status.preparation == HALF
    assert scene.chores() == ()


def test_slices_are_requested_once_all_text_is_tokenized() -> None:
    scene = scene_of(pod_of(), job=job_of(complete=True))

    assert scene.chores() == (CreateBase(),)
    assert [one.reason for one in scene.happenings()] == [Reason.PREPARED]
    scene.step()
    assert scene.happenings() == ()
    assert scene.status.prepared
    assert (scene.status.phase, scene.status.preparation) == ("Queued", None)


def test_a_preparation_is_not_repeated() -> None:
    scene = scene_of(job=job_of(complete=True))
    scene.step()
    prepared = scene.status.prepared
    scene.preparation = None
    scene.step(5.0)

    assert scene.status.prepared == prepared
    assert scene.chores() == (CreateBase(),)


def test_a_job_that_has_trained_is_not_prepared() -> None:
    scene = Scene(plan=make_plan(**DATA))
    scene.status = Scene().form(0, 1).status

    assert CreatePreparation() not in scene.chores()


def test_the_pods_wait_in_the_queue_of_the_job() -> None:
    scene = scene_of(job=job_of(suspend=True), scheduling={"queueName": "research"})

    assert kind(scene.step()) == (Wait, Reason.WAITING_FOR_QUOTA)
    assert scene.status.phase == "Queued"
    queued = next(one for one in scene.status.conditions if one.type == "Queued")
    assert queued.message == "queue `research` has not admitted the pods that tokenize the text"


def test_a_rejected_creation_is_shown() -> None:
    scene = Scene(plan=make_plan(**DATA))
    seen = scene.see()
    refusal = ObjectProblem(Reason.CREATION_REJECTED, "forbidden: quota")

    status = next_status(scene.plan, seen, scene.decide(), scene.now, refusal=refusal)

    assert (status.phase, status.display.reason) == ("Queued", Reason.CREATION_REJECTED)


WAITING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
WARNING = {
    "reason": "FailedCreate",
    "message": "exceeded quota",
    "involvedObject": {"uid": "prep"},
    "lastTimestamp": "2026-11-21T12:00:00Z",
}
PROBLEMS: dict[str, tuple[list[Manifest], list[Manifest], str]] = {
    "no node": ([pod_of(**WAITING, containerStatuses=[])], [], "Unschedulable: 0/3 nodes"),
    "no pod": ([], [WARNING], "FailedCreate: exceeded quota"),
}


@pytest.mark.parametrize(("pods", "warnings", "want"), PROBLEMS.values(), ids=PROBLEMS)
def test_why_pods_do_not_run_is_shown(pods: list[Manifest], warnings: list[Manifest], want: str) -> None:
    scene = scene_of(*pods)
    scene.warnings = warnings

    assert scene.step() == Wait(Reason.PREPARING, f"the text is not tokenized yet: {want}")
    assert running(scene).message.endswith(want)


def test_an_error_that_would_recur_fails_the_job() -> None:
    scene = scene_of(pod_of(0, restarts=3, failure=CRASH), pod_of(1, restarts=1, failure=FATAL))
    scene.step()

    failed = next(one for one in scene.status.conditions if one.type == "Failed")
    assert (failed.status, failed.reason) == ("True", "Data")
    assert failed.message.startswith("tokenizing the text failed: spec.data.train[0].path")
    assert "a.txt is not UTF-8 text." in failed.message
    assert scene.chores() == (DeletePreparation(scene.see().preparation),)  # type: ignore[arg-type]


FAILURES: dict[str, tuple[Failure | str, str, str]] = {
    "an exception": (CRASH, "", "ValueError: bad"),
    "memory": ("", "OOMKilled", "the pod used more than its memory. Raise `spec.data.prepare.resources.memory`."),
    "a log": ("one\nlast line\n", "Error", "exit code 1: last line"),
    "a reason": ("", "Error", "exit code 1: Error"),
    "other JSON": (json.dumps({"reason": "Other"}), "", 'exit code 1: {"reason": "Other"}'),
    "nothing": ("", "", "exit code 1: no log"),
}


@pytest.mark.parametrize(("failure", "reason", "want"), FAILURES.values(), ids=FAILURES)
def test_another_failure_is_retried(failure: Failure | str, reason: str, want: str) -> None:
    scene = scene_of(pod_of(restarts=2, failure=failure, reason=reason))
    scene.news = {"prep-0": LatestReport(make_report(pod_uid="prep-0", preparation=HALF), 1.0, 1.0)}
    scene.step()

    message = running(scene).message
    assert message.startswith(
        f"{HALF_TEXT}; tokenizing the text again after 2 failures. Last failure, of pod demo-prep-0:"
    )
    assert want in message


def test_too_many_failures_fail_the_job() -> None:
    pods = pod_of(0, restarts=2, failure=CRASH), pod_of(1, restarts=1, failure=CRASH)

    assert kind(scene_of(*pods, elastic={"maxRestarts": 3}).decide()) == (Wait, Reason.PREPARING)
    decision = scene_of(*pods, elastic={"maxRestarts": 2}).decide()
    assert isinstance(decision, Fail)
    assert (decision.reason, decision.message.partition(". ")[0]) == (
        Reason.MAX_RESTARTS_EXCEEDED,
        "the number of failures (3) while the text is tokenized exceeds `spec.elastic.maxRestarts` (2)",
    )


def test_a_suspension_deletes_the_pods_and_keeps_what_they_did() -> None:
    scene = scene_of(pod_of(), suspend=True)
    preparation = scene.see().preparation
    assert preparation

    assert scene.chores() == (DeletePreparation(preparation),)
    scene.step()
    assert scene.status.phase == "Suspending"
    assert scene.preparation
    scene.preparation["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert scene.chores() == ()
    scene.preparation, scene.preparation_pods = None, []
    scene.step(1.0)
    assert scene.status.phase == "Suspended"


def test_a_complete_preparation_is_left_to_its_ttl() -> None:
    scene = scene_of(job=job_of(complete=True), suspend=True)
    scene.step()

    assert (scene.chores(), scene.status.phase) == ((), "Suspended")


def test_a_preparation_that_is_being_deleted_is_created_again_after_that() -> None:
    scene = scene_of(job=job_of(deletionTimestamp="2026-11-21T12:00:00Z"))

    assert kind(scene.decide()) == (Wait, Reason.PREPARING)
    assert scene.chores() == ()
