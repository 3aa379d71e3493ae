"""Deletion of a job's obsolete children, with a pause for each child after the API server rejects its deletion.

A rejected deletion delays no other operation. The operator shows it in the job's status, and retries it when
`RejectedRequests` allows that.
"""

from collections.abc import Callable, Sequence
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
from trainingjob_operator.shell.rejected_requests import RejectedRequests

log = Log("deletion")


class ChildDeleter:
    """Deletes the obsolete children of jobs."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._rejections: RejectedRequests[str] = RejectedRequests(now)  # messages, by the UIDs of the children

    def last_rejection(self, uid: str) -> ObjectProblem | None:  # None: not rejected
        """Return why the API server rejected the last deletions of a job's children."""
        messages = self._rejections.list_problems(uid)
        return ObjectProblem(Reason.DELETION_REJECTED, describe_rejected_deletions(messages)) if messages else None

    def forget(self, uid: str) -> None:
        """Drop the rejections of a job."""
        self._rejections.forget(uid)

    async def delete_obsolete(
        self, uid: str, operations: Sequence[ChildOperation]
    ) -> tuple[tuple[ChildOperation, ...], ObjectProblem | None]:
        """Delete the children that the written status no longer needs, except those with a recent rejection.

        Return the operations whose deletions the API server accepted, and the rejected ones if it rejected any now.
        Raises `ClusterUnavailableError`.
        """
        obsolete = [(operation, child) for operation in operations if (child := _find_obsolete(operation))]
        self._rejections.keep(uid, {get_text(child, "metadata", "uid") for _, child in obsolete})
        accepted: list[ChildOperation] = []
        has_new_rejection = False
        for operation, child in obsolete:
            child_uid = get_text(child, "metadata", "uid")
            if self._rejections.is_recent(uid, child_uid):
                continue
            if error := await self._try_delete(operation, child):
                kind, name = get_text(child, "kind"), get_text(child, "metadata", "name")
                message = f"the API server rejects the deletion of {kind} {name}: {error}"
                self._rejections.add(uid, child_uid, message)
                has_new_rejection = True
            else:
                accepted.append(operation)
                self._rejections.discard(uid, child_uid)
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
