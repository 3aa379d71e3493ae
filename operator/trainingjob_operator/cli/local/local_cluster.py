"""A one-machine cluster for one job: the reconciler's cluster interface, implemented with processes.

It replaces the API server (one job with resource versions, and its children). `Controllers` replaces JobSet, the Job
controller and the kubelet. The operator's own code runs unchanged on top.
"""

from collections.abc import Callable
from typing import Any

from trainingjob_operator.cli.local.child_manifests import NODE, local_node
from trainingjob_operator.cli.local.controllers import Controllers
from trainingjob_operator.cli.local.objects import Objects
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.report.job_events import JobEvent
from trainingjob_operator.shell.interfaces import ConflictError, Manifest


class LocalCluster:
    """Implements `shell.interfaces.Cluster` for one job."""

    def __init__(
        self,
        job: Manifest,
        objects: Objects,
        controllers: Controllers,
        *,
        save_job: Callable[[Manifest], None],
        emit: Callable[[JobEvent], None],
    ) -> None:
        """Hold one job. `save_job` receives every new state of it before any reader can act on that state."""
        self.job = job
        self._objects = objects
        self._controllers = controllers
        self._save_job = save_job
        self._emit = emit

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Return the job; None for any other name."""
        metadata = self.job["metadata"]
        return self.job if (namespace, name) == (metadata["namespace"], metadata["name"]) else None

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        """Return all objects: all of them belong to the job."""
        del namespace, uid, recorded_nodes
        return Children(
            jobsets=self._objects.of_kind("JobSet"),
            jobs=self._objects.of_kind("Job"),
            pods=self._objects.of_kind("Pod"),
            config_maps=self._objects.of_kind("ConfigMap"),
            nodes={NODE: local_node()},
        )

    async def create(self, manifest: Manifest) -> None:
        """Create an object. Raises `ConflictError` if an object of that kind and name exists."""
        if manifest in self._objects:
            raise ConflictError(f"{manifest['kind']} {manifest['metadata']['name']} already exists")
        await self.apply(manifest)

    async def apply(self, manifest: Manifest) -> None:
        """Create or replace an object."""
        self._controllers.put(manifest)

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID and, in the background, its dependents."""
        stored = self._objects.find(manifest["metadata"]["uid"])
        if stored is not None:
            self._controllers.delete(stored, grace_seconds)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status; return the new job. Raises `ConflictError` if the job has changed since it was read."""
        if job["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
            raise ConflictError("the job changed since it was read")
        return self._replace_job({**self.job, "status": status})

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Pass an event to the callback `emit`."""
        del job
        self._emit(JobEvent(is_warning=warning, reason=reason, message=message))

    def edit(self, **sections: Any) -> None:
        """Replace sections of the spec, as `kubectl patch` would."""
        metadata = {**self.job["metadata"], "generation": self.job["metadata"]["generation"] + 1}
        self._replace_job({**self.job, "metadata": metadata, "spec": {**self.job["spec"], **sections}})

    def annotate(self, **annotations: str) -> None:
        """Set annotations of the job, as `kubectl annotate` would."""
        existing = self.job["metadata"].get("annotations", {})
        self._replace_job({**self.job, "metadata": {**self.job["metadata"], "annotations": existing | annotations}})

    def _replace_job(self, job: Manifest) -> Manifest:
        version = str(int(self.job["metadata"]["resourceVersion"]) + 1)
        new_job = {**job, "metadata": {**job["metadata"], "resourceVersion": version}}
        self._save_job(new_job)
        self.job = new_job
        return new_job
