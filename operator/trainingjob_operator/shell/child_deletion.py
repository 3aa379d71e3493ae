"""Deletion of a job's obsolete children, with a backoff for each child after the API server rejects its deletion.

Causes of a rejection are permissions and admission webhooks. A rejected deletion delays no other operation: the
operator shows it in the job's status and retries it after `DELETE_BACKOFF_SECONDS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from trainingjob_operator.core.decide.child_maintenance import (
    ChildOperation,
    CreateBase,
    CreatePreparation,
    CreateSlice,
    DeleteJob,
    DeleteJobSet,
    DeletePod,
    DeletePreparation,
)
from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.rejections import describe_rejected_deletions
from trainingjob_operator.shell.interfaces import Cluster, ForbiddenError
from trainingjob_operator.shell.logging_setup import Log

DELETE_BACKOFF_SECONDS = 10.0
"""Backoff after a rejected deletion."""

log = Log("deletion")


@dataclass(frozen=True)
class _Rejection:
    """Message and time of a rejected deletion."""

    message: str
    at: datetime


class ChildDeleter:
    """Deletes the obsolete children of jobs."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._rejections: dict[str, dict[str, _Rejection]] = {}  # by the UIDs of the job and of the child

    def last_rejection(self, uid: str) -> ObjectProblem | None:  # None: not rejected
        """Return why the API server rejected the last deletions of a job's children."""
        rejections = self._rejections.get(uid, {})
        messages = [rejection.message for rejection in rejections.values()]
        return ObjectProblem(Reason.DELETION_REJECTED, describe_rejected_deletions(messages)) if messages else None

    def forget(self, uid: str) -> None:
        """Drop the rejections of a job."""
        self._rejections.pop(uid, None)

    async def delete_obsolete(
        self, uid: str, operations: Sequence[ChildOperation]
    ) -> tuple[tuple[ChildOperation, ...], ObjectProblem | None]:
        """Delete the children that the written status no longer needs, except those with a recent rejection.

        Return the operations whose deletions the API server accepted, and the rejected ones if it rejected any now.
        Raises `ClusterUnavailableError`.
        """
        former, now = self._rejections.pop(uid, {}), self._now()
        rejections: dict[str, _Rejection] = {}
        accepted: list[ChildOperation] = []
        has_new_rejection = False
        for operation in operations:
            child = _find_obsolete(operation)
            if child is None:
                continue
            child_uid = get_text(child, "metadata", "uid")
            last = former.get(child_uid)
            if last and abs((now - last.at).total_seconds()) < DELETE_BACKOFF_SECONDS:  # the clock can be set back
                rejections[child_uid] = last
            elif error := await self._try_delete(operation, child):
                kind, name = get_text(child, "kind"), get_text(child, "metadata", "name")
                message = f"the API server rejects the deletion of {kind} {name}: {error}"
                rejections[child_uid] = _Rejection(message, now)
                has_new_rejection = True
            else:
                accepted.append(operation)
            if rejections:  # kept also if the next deletion raises an error
                self._rejections[uid] = rejections
        return tuple(accepted), self.last_rejection(uid) if has_new_rejection else None

    async def delete_drill_pods(self, deletions: Sequence[DeletePod]) -> str:
        """Delete the pods of a drill. Return the API server's message if it rejects all deletions; else empty."""
        errors = [await self._try_delete(deletion, deletion.pod.manifest) for deletion in deletions]
        return errors[0] if errors and all(errors) else ""

    async def _try_delete(self, operation: ChildOperation, child: Manifest) -> str:
        """Delete the child of an operation. Return the API server's message if it rejects the deletion; else empty."""
        must_force = isinstance(operation, DeletePod) and operation.force
        try:
            await self._cluster.delete(child, grace_seconds=0 if must_force else None)
        except ForbiddenError as error:
            name = get_text(child, "metadata", "name")
            log.warning("the API server rejected a deletion", name=name, error=str(error))
            return str(error) or "no reason given"
        return ""


def _find_obsolete(operation: ChildOperation) -> Manifest | None:  # None: the operation creates a child
    """Return the child that an operation deletes."""
    match operation:
        case CreateBase() | CreateSlice() | CreatePreparation():
            return None
        case DeleteJobSet(jobset):
            return jobset.manifest
        case DeleteJob(child) | DeletePreparation(child):
            return child.manifest
        case DeletePod(pod):
            return pod.manifest
        case _:
            assert_never(operation)
