"""Kueue's Workloads: why Kueue holds a JobSet of the job back.

Kueue makes one Workload for each JobSet with a queue label, and suspends the JobSet until it admits the Workload. An
eviction suspends it again. The conditions of a Workload are those of Kueue's API `kueue.x-k8s.io/v1beta2`.
"""

from trainingjob_operator.core.manifests import Children, Manifest, find_condition, get_text, get_value, iter_items
from trainingjob_operator.core.names import MULTIKUEUE, QUEUE_LABEL
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.queue_faults import advise_on_queue
from trainingjob_operator.core.reasons import Reason

DOMAIN = "kueue.x-k8s.io/"
NOT_READY_EVICTION = "PodsReadyTimeout"
PREEMPTION = "Preempted"
PREEMPTING = "WaitingForPreemptedWorkloads"
"""Reason of a Workload for which Kueue is preempting others."""
MAX_EXPLANATION_LENGTH = 512


def find_hold(jobset: Manifest, children: Children) -> ObjectProblem | None:  # None: it is not suspended
    """Return why a JobSet is suspended, or creates no pods here."""
    if get_text(jobset, "spec", "managedBy") == MULTIKUEUE:
        return _describe_multikueue(jobset)
    if get_value(jobset, "spec", "suspend") is not True:
        return None
    queue = get_text(jobset, "metadata", "labels", QUEUE_LABEL)
    if not queue:
        return ObjectProblem(Reason.WAITING_FOR_QUOTA, "its JobSet is suspended")
    workload, namespace = find_workload(jobset, children), get_text(jobset, "metadata", "namespace")
    evicted, quota = find_condition(workload, "Evicted"), find_condition(workload, "QuotaReserved")
    blocker = get_text(quota, "message") if quota.get("status") == "False" else ""
    if evicted.get("status") == "True":  # until Kueue reserves quota again
        return _describe_eviction(evicted, blocker, queue, namespace)
    if quota.get("status") == "True":
        checks = get_text(find_condition(workload, "Admitted"), "message")
        return _make_hold(Reason.WAITING_FOR_ADMISSION, f"queue `{queue}` has reserved its quota", checks)
    is_preempting = quota.get("reason") == PREEMPTING
    reason = Reason.WAITING_FOR_ADMISSION if is_preempting else Reason.WAITING_FOR_QUOTA
    advice = advise_on_queue(blocker, namespace, queue)
    return _make_hold(reason, f"queue `{queue}` has not admitted it", blocker, advice)


def find_workload(jobset: Manifest, children: Children) -> Manifest:  # empty: unknown
    """Return the Workload of a JobSet."""
    uid = get_text(jobset, "metadata", "uid")
    owned = (
        workload
        for workload in children.workloads
        if any(get_text(owner, "uid") == uid for owner in iter_items(workload, "metadata", "ownerReferences"))
    )
    return next(owned, {})


def describe_ignored_keys(job: Manifest, queue: str | None) -> tuple[str, ...]:
    """Return warnings about Kueue's labels and annotations on a TrainingJob, which Kueue does not read.

    `queue` is the queue of the spec; None: it has none.
    """
    labels, annotations = (get_value(job, "metadata", part) or {} for part in ("labels", "annotations"))
    keys = {**annotations, **labels}
    ignored = sorted(key for key in keys if key.startswith(DOMAIN) and not (key == QUEUE_LABEL and keys[key] == queue))
    advice = {QUEUE_LABEL: " Set `spec.scheduling.queueName` instead."}
    return tuple(f"metadata: `{key}` has no effect on a TrainingJob.{advice.get(key, '')}" for key in ignored)


def _describe_multikueue(jobset: Manifest) -> ObjectProblem:
    """Return why a JobSet never trains: Kueue copies it, but not the ConfigMap and Secrets that its pods mount."""
    queue = get_text(jobset, "metadata", "labels", QUEUE_LABEL)
    text = (
        f"queue `{queue}` dispatches JobSets to other clusters by MultiKueue, whose pods cannot join this job. Create "
        "the job again with a LocalQueue whose ClusterQueue has no admission check of MultiKueue, or in a worker "
        "cluster"
    )
    return ObjectProblem(Reason.WAITING_FOR_ADMISSION, text)


def _describe_eviction(evicted: Manifest, blocker: str, queue: str, namespace: str) -> ObjectProblem:
    """Return the reason of an eviction. `blocker` is why Kueue has not admitted the slice again; empty: unknown."""
    reason = get_text(evicted, "message") or get_text(evicted, "reason")
    explanation = "; ".join(dict.fromkeys(filter(None, (reason, blocker))))
    advice = advise_on_queue(blocker or reason, namespace, queue)
    if evicted.get("reason") == NOT_READY_EVICTION:
        text = f"Kueue evicted it because its pods were not ready in time; it waits in queue `{queue}`"
        return _make_hold(Reason.EVICTED_NOT_READY, text, explanation, advice)
    if evicted.get("reason") == PREEMPTION:
        return _make_hold(Reason.PREEMPTED, f"Kueue preempted it; it waits in queue `{queue}`", explanation, advice)
    return _make_hold(Reason.EVICTED, f"Kueue evicted it from queue `{queue}`", explanation, advice)


def _make_hold(reason: Reason, text: str, explanation: str, advice: str = "") -> ObjectProblem:
    message = f"{text}: {explanation[:MAX_EXPLANATION_LENGTH]}" if explanation else text
    return ObjectProblem(reason, f"{message}. {advice}" if advice else message)
