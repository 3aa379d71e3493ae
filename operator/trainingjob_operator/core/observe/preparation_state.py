"""The preparation phase: the Job whose pods tokenize the text, and what they report."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Failure, FailureReason
from trainingjob_operator.core.manifests import (
    Children,
    Manifest,
    find_condition,
    get_int,
    get_text,
    get_value,
    iter_items,
)
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.pods import Exit, ObjectProblem, read_exit, read_problem

MEMORY_PATH = "spec.data.prepare.resources.memory"


@dataclass(frozen=True)
class PreparationPod:
    """A pod that tokenizes text."""

    name: str
    num_restarts: int
    """Failures of its container so far."""
    failure: Failure | None
    """The last failure. None: the container has not failed."""
    problem: ObjectProblem | None
    """Why it does not run now. None: it runs, or no problem is known."""


@dataclass(frozen=True)
class PreparationJob:
    """The Job of the preparation phase."""

    manifest: Manifest
    is_complete: bool
    deleting: bool
    suspended: bool
    """Whether its queue has not admitted it."""
    pods: tuple[PreparationPod, ...]
    progress: PreparationProgress | None
    """How much of the text is tokenized. None: no pod reports it yet."""
    warning: ObjectProblem | None = None
    """The API server's newest warning about its pods."""

    @property
    def num_failures(self) -> int:
        """Return the failures of its pods so far. Those of pods that are gone do not count."""
        return sum(pod.num_restarts for pod in self.pods)

    @property
    def failed_pod(self) -> PreparationPod | None:
        """Return the pod whose failure decides: one that would recur, else the one that has failed most often."""
        failed = [pod for pod in self.pods if pod.failure]
        return max(failed, key=lambda pod: (bool(pod.failure and pod.failure.fatal), pod.num_restarts), default=None)

    @property
    def problem(self) -> ObjectProblem | None:
        """Return why a pod does not run; None: all run, or no problem is known."""
        return next((pod.problem for pod in self.pods if pod.problem), None) or (None if self.pods else self.warning)


def read_preparation(
    children: Children, heartbeats: HeartbeatState
) -> PreparationJob | None:  # None: the Job does not exist
    """Return the preparation of a job."""
    manifest, pods = children.preparation, children.preparation_pods
    if manifest is None:
        return None
    return PreparationJob(
        manifest=manifest,
        is_complete=find_condition(manifest, "Complete").get("status") == "True",
        deleting=bool(get_value(manifest, "metadata", "deletionTimestamp")),
        suspended=get_value(manifest, "spec", "suspend") is True,
        pods=tuple(_read_pod(pod) for pod in pods),
        progress=_find_progress(pods, heartbeats),
        warning=_find_warning(children, get_text(manifest, "metadata", "uid")),
    )


def _read_pod(manifest: Manifest) -> PreparationPod:
    container = next(iter_items(manifest, "status", "containerStatuses"), {})
    last = read_exit(container)
    has_failed = last is not None and last.code != 0
    return PreparationPod(
        name=get_text(manifest, "metadata", "name"),
        num_restarts=get_int(container, "restartCount") or 0,
        failure=_read_failure(last) if last and has_failed else None,
        # Between two attempts the failure says more than the kubelet's back-off.
        problem=None if has_failed else read_problem(manifest, container),
    )


def _read_failure(last: Exit) -> Failure:
    """Return the failure of a container: what its program wrote, else what Kubernetes knows."""
    try:
        return Failure.model_validate_json(last.message)
    except ValidationError:
        pass
    if last.reason == "OOMKilled":
        message = f"the pod used more than its memory. Raise `{MEMORY_PATH}`."
        return Failure(reason=FailureReason.OUT_OF_MEMORY, message=message, path=MEMORY_PATH)
    end = last.message.strip().rpartition("\n")[2]
    return Failure(reason=FailureReason.CRASH, message=f"exit code {last.code}: {end or last.reason or 'no log'}")


def _find_progress(pods: Sequence[Manifest], heartbeats: HeartbeatState) -> PreparationProgress | None:
    """Return the newest progress: the leading pod reports it."""
    latest_reports = [heartbeats.latest_reports.get(get_text(pod, "metadata", "uid")) for pod in pods]
    with_progress = [item for item in latest_reports if item and item.report.preparation]
    newest = min(with_progress, key=lambda item: item.report_age, default=None)
    return newest.report.preparation if newest else None


def _find_warning(children: Children, uid: str) -> ObjectProblem | None:  # None: there is none
    about = [event for event in children.warnings if get_text(event, "involvedObject", "uid") == uid]
    newest = max(about, key=lambda event: get_text(event, "lastTimestamp"), default=None)
    return ObjectProblem(get_text(newest, "reason") or "Warning", get_text(newest, "message")) if newest else None
