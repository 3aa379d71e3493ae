"""Why a job waits, from the message of the component that knows the cause."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import failure, jobset_name, make_plan
from tests.support.scenes import Scene, drop_pod, lose_node, set_pod, trained
from trainingjob_api.status.training_job_status import Condition, TrainingJobStatus
from trainingjob_operator.core.decide.decision_rules import decide
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_status import next_status
from trainingjob_operator.core.report.rejections import (
    describe_rejected_deletions,
    explain_rejection,
    join_rejections,
)


def waiting(reason: str, message: str = "", last: str = "") -> list[dict[str, Any]]:
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return [{**state, "lastState": {"terminated": {"exitCode": 78, "message": last}}} if last else state]


def unscheduled(scene: Scene, message: str) -> Scene:
    for host in range(2):
        scene.pod(0, host)["spec"] = {}
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        set_pod(scene, 0, host, phase="Pending", podIP="", conditions=[condition], containerStatuses=[])
    return scene


def warn(scene: Scene, reason: str, message: str, time: str = "2026-11-21T12:00:00Z", slice_number: int = 0) -> Scene:
    name = f"{jobset_name(scene.plan, slice_number)}-slice-0"
    event = {"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": time}
    scene.warnings.append(event)
    return scene


def starting(scene: Scene, host: int = 0) -> Scene:
    return set_pod(scene, 0, host, phase="Pending", podIP="", containerStatuses=waiting("ContainerCreating"))


def drop_news(scene: Scene) -> Scene:
    scene.news.clear()
    return scene


POD = "demo-666ff-slice-0-0-d-0-0"
WORDS: dict[str, tuple[Callable[[], Scene], str, str, str]] = {
    "nothing is there": (Scene, "Queued", "WaitingForPods", "the base JobSet is being created"),
    "no pod yet": (
        lambda: drop_pod(Scene().place(0), 0, 1),
        "Queued",
        "WaitingForPods",
        "slice 0: host 1 has no pod yet",
    ),
    "no pod, and quota is why": (
        lambda: warn(drop_pod(drop_pod(Scene().place(0), 0, 1), 0, 0), "FailedCreate", "exceeded quota: research"),
        "Queued",
        "FailedCreate",
        "slice 0: exceeded quota: research",
    ),
    "the newest warning counts": (
        lambda: warn(
            warn(drop_pod(drop_pod(Scene().place(0), 0, 1), 0, 0), "FailedCreate", "new"),
            "FailedCreate",
            "old",
            "2026-11-20",
        ),
        "Queued",
        "FailedCreate",
        "slice 0: new",
    ),
    "no node fits": (
        lambda: unscheduled(Scene().place(0), "0/4 nodes are available"),
        "Queued",
        "Unschedulable",
        f"slice 0: host 0 ({POD}): Unschedulable: 0/4 nodes are available",
    ),
    "an old complaint of the scheduler is not repeated": (
        lambda: warn(starting(Scene().place(0)), "FailedScheduling", "0/4 nodes"),
        "Starting",
        "Starting",
        f"slice 0: host 0 ({POD}) is starting on node node-0-0",
    ),
    "a volume cannot be mounted": (
        lambda: warn(starting(Scene().place(0)), "FailedMount", "no such claim"),
        "Starting",
        "FailedMount",
        f"slice 0: host 0 ({POD}): no such claim",
    ),
    "the image cannot be pulled": (
        lambda: set_pod(
            Scene().place(0), 0, 0, phase="Pending", containerStatuses=waiting("ErrImagePull", "not found")
        ),
        "Starting",
        "ErrImagePull",
        f"slice 0: host 0 ({POD}): ErrImagePull: not found",
    ),
    "a secret is missing": (
        lambda: set_pod(
            Scene().place(0),
            0,
            0,
            phase="Pending",
            containerStatuses=waiting("CreateContainerConfigError", 'secret "s" not found'),
        ),
        "Starting",
        "CreateContainerConfigError",
        f'slice 0: host 0 ({POD}): CreateContainerConfigError: secret "s" not found',
    ),
    "an agent says why it cannot start": (
        lambda: set_pod(
            Scene().place(0),
            0,
            0,
            containerStatuses=waiting("CrashLoopBackOff", "back-off", "TRAININGJOB_POD is not set"),
        ),
        "Starting",
        "CrashLoopBackOff",
        f"slice 0: host 0 ({POD}): CrashLoopBackOff: TRAININGJOB_POD is not set",
    ),
    "a pod failed": (
        lambda: set_pod(Scene().place(0), 0, 0, phase="Failed", reason="UnexpectedAdmissionError", message="no TPU"),
        "Starting",
        "UnexpectedAdmissionError",
        f"slice 0: host 0 ({POD}): UnexpectedAdmissionError: no TPU",
    ),
    "a host cannot start the program": (
        lambda: Scene(plan=make_plan(2, 3)).place(0, 1, 2).hear_slice(0, 1).hear(0, 1, broken=failure()),
        "Starting",
        "StandbyFailed",
        "slice 0: host 1 (demo-666ff-slice-0-1-d-0-1) cannot start: ValueError: bad",
    ),
    "a pod is being deleted": (
        lambda: Scene().place(0).delete_pod(0, 0),
        "Starting",
        "PodDeleted",
        f"slice 0: host 0 ({POD}) is being deleted",
    ),
    "a pod waits for its node": (
        lambda: unbound(Scene().place(0)),
        "Queued",
        "WaitingForNodes",
        f"slice 0: host 0 ({POD}) has no node yet",
    ),
    "its node is not ready": (
        lambda: lose_node(Scene().place(0), 0, 0),
        "Starting",
        "NodeLost",
        "slice 0: node node-0-0 of host 0 is not ready",
    ),
    "no report yet": (
        lambda: Scene().place(0),
        "Starting",
        "Starting",
        f"slice 0: host 0 ({POD}) has not reported yet",
    ),
    "reports have ceased": (
        lambda: Scene().place(0).hear_slice(0, age=7.0),
        "Starting",
        "HeartbeatLost",
        f"slice 0: host 0 ({POD}) has not reported for 7.0 s",
    ),
    "standbys import": (
        lambda: Scene().place(0).hear_slice(0, standby=False),
        "Starting",
        "WaitingForSlices",
        "0 of at least 1 slice ready",
    ),
}


def unbound(scene: Scene) -> Scene:
    scene.pod(0, 0)["spec"] = {}
    return set_pod(scene, 0, 0, phase="Pending", podIP="", containerStatuses=[])


@pytest.mark.parametrize(("scene", "phase", "reason", "message"), WORDS.values(), ids=WORDS.keys())
def test_reason_of_a_waiting_job(scene: Callable[[], Scene], phase: str, reason: str, message: str) -> None:
    at = scene()
    at.step()

    assert at.status.phase == phase
    condition = find(at, "Queued" if phase == "Queued" else "Running")
    assert (condition.reason, condition.message) == (reason, message)


def find(scene: Scene, kind: str) -> Condition:
    return next(one for one in scene.status.conditions if one.type == kind)


def test_a_queue_has_not_admitted_the_job() -> None:
    scene = Scene(plan=make_plan(scheduling={"queueName": "research"})).place(0)
    scene.jobsets[0]["spec"]["suspend"] = True
    scene.step()

    queued = find(scene, "Queued")
    assert (queued.status, queued.reason) == ("True", Reason.WAITING_FOR_QUOTA)
    assert queued.message == "slice 0: queue `research` has not admitted it"


def test_name_conflict_with_another_owner() -> None:
    scene = Scene().place(0)
    scene.pods.clear()
    scene.jobsets[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    scene.step()

    assert find(scene, "Queued").reason == Reason.NAME_CONFLICT
    assert "demo-666ff belongs to another owner" in find(scene, "Queued").message


def test_rejection_by_the_api_server_is_reported() -> None:
    scene = Scene()
    seen = scene.see()
    refusal = ObjectProblem(Reason.CREATION_REJECTED, 'jobsets is forbidden: violates PodSecurity "restricted"')
    scene.status = next_status(scene.plan, seen, decide(scene.plan, seen, scene.now), scene.now, refusal=refusal)

    assert (find(scene, "Queued").reason, find(scene, "Queued").message) == (refusal.reason, refusal.message)


FAILED = 'failed calling webhook "mjobset.kb.io"'
POST = 'Post "https://kueue-webhook-service.kueue-system.svc:443/mutate?timeout=10s": connection refused'
REJECTIONS = {
    "a quota": ("exceeded quota: research", ""),
    "Kueue's webhook has no pod": (
        f"{FAILED}: {POST}",
        (
            ". Webhook `mjobset.kb.io` must answer before the operator can create pods: check the pods of Service "
            "`kueue-webhook-service` in namespace `kueue-system`. Running hosts continue, and the operator retries"
        ),
    ),
    "a webhook at a URL": (
        f"{FAILED}: timeout",
        (
            ". Webhook `mjobset.kb.io` must answer before the operator can create pods: check the target of its "
            "configuration. Running hosts continue, and the operator retries"
        ),
    ),
}


@pytest.mark.parametrize(("message", "advice"), REJECTIONS.values(), ids=REJECTIONS.keys())
def test_rejection_by_a_webhook_that_fails_has_a_next_step(message: str, advice: str) -> None:
    assert explain_rejection(message) == message + advice


def test_smaller_world_reports_why_slices_are_absent() -> None:
    scene = trained().silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.train(step=20, restored=10)
    scene.silence(1, age=12.0)
    scene.step()

    degraded = find(scene, "Degraded")
    assert (degraded.status, degraded.reason) == ("True", Reason.FEWER_SLICES)
    assert degraded.message.startswith("slice 1: host 0 (demo-666ff-x1-slice-0-0-d-1-0) has not reported for 12 s")
    assert find(scene, "Running").message.startswith("training on 1 of 2 slices; slice 1: host 0")
    assert scene.status.phase == "Degraded"


def test_smaller_world_reports_slices_that_are_not_admitted() -> None:
    scene = trained().silence(1).hear_slice(0, still=6.0)
    scene.step()
    seen = drop_pod(drop_pod(scene.train(step=20, restored=10), 1, 0), 1, 1).see()
    refusal = ObjectProblem(Reason.CREATION_REJECTED, "exceeded quota: research")
    scene.status = next_status(scene.plan, seen, decide(scene.plan, seen, scene.now), scene.now, refusal=refusal)

    words = "slice 1: host 0 has no pod yet; exceeded quota: research"
    assert find(scene, "Degraded").message == words
    assert find(scene, "Running").message == f"training on 1 of 2 slices; {words}"


def test_forming_smaller_world_reports_slices_that_are_not_admitted() -> None:
    scene = trained().silence(1).hear_slice(0, still=6.0)
    seen = drop_pod(drop_pod(scene, 1, 0), 1, 1).see()
    refusal = ObjectProblem(Reason.CREATION_REJECTED, "exceeded quota: research")
    scene.status = next_status(scene.plan, seen, decide(scene.plan, seen, scene.now), scene.now, refusal=refusal)

    assert scene.status.phase == "Recovering"
    assert find(scene, "Degraded").message == "slice 1: host 0 has no pod yet; exceeded quota: research"


def test_full_world_does_not_report_rejected_slices() -> None:
    scene = trained()
    seen = scene.see()
    refusal = ObjectProblem(Reason.CREATION_REJECTED, "exceeded quota: research")
    scene.status = next_status(scene.plan, seen, decide(scene.plan, seen, scene.now), scene.now, refusal=refusal)

    assert find(scene, "Degraded").status == "False"
    assert "quota" not in find(scene, "Running").message


def next_with(scene: Scene, refusal: ObjectProblem) -> TrainingJobStatus:
    seen = scene.see()
    return next_status(scene.plan, seen, decide(scene.plan, seen, scene.now), scene.now, refusal=refusal)


STAYS = ObjectProblem(Reason.DELETION_REJECTED, "the API server rejects the deletion of JobSet a: it stays")


def test_full_world_reports_a_child_that_cannot_be_deleted() -> None:
    scene = trained()
    scene.status = next_with(scene, STAYS)

    assert find(scene, "Running").message == f"training on 2 slices; {STAYS.message}"
    assert find(scene, "Degraded").status == "False"


def test_rejected_deletion_does_not_hide_why_pods_do_not_run() -> None:
    scene = Scene().place(0)
    scene.pods.clear()
    scene.step()
    text, reason = find(scene, "Queued").message, find(scene, "Queued").reason

    scene.status = next_with(scene, STAYS)
    assert (find(scene, "Queued").reason, find(scene, "Queued").message) == (reason, f"{text}; {STAYS.message}")


def test_rejections_are_joined_and_limited() -> None:
    creation = ObjectProblem(Reason.CREATION_REJECTED, "exceeded quota")

    assert join_rejections(None, None) is None
    assert join_rejections(creation, None) == creation
    assert join_rejections(creation, STAYS) == ObjectProblem(creation.reason, f"exceeded quota; {STAYS.message}")
    assert describe_rejected_deletions(["a", "b", "c"]) == "a; b; c"
    assert describe_rejected_deletions(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
    assert "before the operator can delete it: check" in describe_rejected_deletions([FAILED])


def test_smaller_world_reports_that_slices_join_later() -> None:
    scene = trained().silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.train(step=20, restored=10).hear_slice(1, phase="idle")
    scene.announced = 1.0
    scene.step()

    assert find(scene, "Degraded").message == "the other slices are ready and join after `spec.elastic.growCooldown`"


def test_job_without_a_world_reports_present_and_missing_slices() -> None:
    scene = Scene(plan=make_plan(2, 2)).form(0, 1).silence(1).hear_slice(0, still=6.0)
    scene.step()

    assert scene.status.phase == "Recovering"
    assert find(scene, "Degraded").reason == Reason.WAITING_FOR_SLICES
    assert find(scene, "Running").message.startswith("1 of at least 2 slices ready; slice 1: host 0")


def test_job_without_a_world_reports_what_each_slice_lacks() -> None:
    scene = Scene(plan=make_plan(3, 3)).form(0, 1, 2).hear_slice(0, still=6.0)
    for number in (1, 2):
        lose_node(scene, number, 0).silence(number)
    scene.step()

    assert scene.status.phase == "Recovering"
    assert find(scene, "Running").message == (
        "1 of at least 3 slices ready; slice 1: node node-1-0 of host 0 is not ready; "
        "slice 2: node node-2-0 of host 0 is not ready"
    )


def test_absent_slices_above_the_limit_are_counted() -> None:
    scene = Scene(plan=make_plan(1, 7)).form(*range(7)).hear_slice(0, still=6.0)
    for number in range(1, 7):
        lose_node(scene, number, 0).silence(number)
    scene.step()

    message = find(scene, "Degraded").message
    assert message.count("is not ready") == 4
    assert message.endswith("slice 4: node node-4-0 of host 0 is not ready; and 2 more slices")
