"""The preparation phase: whether the text is tokenized before slices are requested, and when it fails the job.

It ends once, and the status records it: no later start of the job repeats it. If tokens are missing later, the hosts
tokenize the text.

| a pod ends by | what follows |
|---|---|
| an error that would recur: a missing text, a wrong tokenizer | the job fails at once |
| another failure | the kubelet restarts it with a back-off, up to `elastic.maxRestarts` times over all pods |
| a lost node, a deletion | Kubernetes replaces the pod; it does not count |

Parts that are complete stay, so each attempt continues where the last one ended.
"""

from trainingjob_operator.core.decide.decisions import Fail, Wait
from trainingjob_operator.core.diagnose.health import describe_failure
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.preparation_state import PreparationJob, PreparationPod
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.units import pluralize


def is_preparing(plan: Plan, seen: Observed) -> bool:
    """Return whether the text must be tokenized before slices are requested."""
    is_needed = plan.spec.data.prepare is not None and seen.status.prepared is None and seen.status.world is None
    return is_needed and not (seen.preparation and seen.preparation.is_complete)


def decide_preparation(plan: Plan, seen: Observed) -> Wait | Fail:
    """Return the decision during the preparation phase."""
    job = seen.preparation
    if plan.spec.suspend:
        return Wait(Reason.SUSPENDED, "`spec.suspend` is true")
    if job is None or job.deleting:
        return Wait(Reason.PREPARING, "the pods that tokenize the text are being created")
    if job.suspended:
        queue = plan.spec.scheduling.queue_name or ""
        return Wait(Reason.WAITING_FOR_QUOTA, f"queue `{queue}` has not admitted the pods that tokenize the text")
    pod = job.failed_pod
    return _describe_work(job) if pod is None else _find_job_failure(plan, job, pod) or _describe_retry(job, pod)


def _find_job_failure(plan: Plan, job: PreparationJob, pod: PreparationPod) -> Fail | None:  # None: it is retried
    assert pod.failure  # noqa: S101  # it is the failed pod
    message = describe_failure(pod.failure)
    if pod.failure.fatal:
        return Fail(pod.failure.reason, f"tokenizing the text failed: {message}")
    limit = plan.spec.elastic.max_restarts
    if job.num_failures <= limit:
        return None
    prefix = f"the number of failures ({job.num_failures}) while the text is tokenized exceeds"
    return Fail(
        Reason.MAX_RESTARTS_EXCEEDED,
        f"{prefix} `spec.elastic.maxRestarts` ({limit}). Last failure, of pod {pod.name}: {message}",
    )


def _describe_retry(job: PreparationJob, pod: PreparationPod) -> Wait:
    assert pod.failure  # noqa: S101  # it is the failed pod
    count = pluralize(max(job.num_failures, 1), "failure")
    return Wait(
        Reason.PREPARING,
        f"tokenizing the text again after {count}. Last failure, of pod {pod.name}: {describe_failure(pod.failure)}",
    )


def _describe_work(job: PreparationJob) -> Wait:
    if job.problem:
        return Wait(Reason.PREPARING, f"the text is not tokenized yet: {job.problem.reason}: {job.problem.message}")
    return Wait(Reason.PREPARING, "tokenizing the text")
