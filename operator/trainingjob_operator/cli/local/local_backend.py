"""This machine as a stand-in for a cluster: one job's objects, their processes, and the cluster interface."""

from collections.abc import Callable

from trainingjob_operator.cli.local.child_manifests import host_of, slice_of
from trainingjob_operator.cli.local.container import Container, start_container
from trainingjob_operator.cli.local.controllers import Controllers
from trainingjob_operator.cli.local.local_cluster import LocalCluster
from trainingjob_operator.cli.local.objects import Objects
from trainingjob_operator.cli.local.path_translation import Mounts
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.core.report.job_events import JobEvent
from trainingjob_operator.shell.interfaces import Caller, Manifest, UnauthenticatedCallerError

HOST_RETURN_SECONDS = 10.0
"""Seconds until a failed host returns. The other hosts recover first, without sharing the machine with it."""


class LocalBackend:
    """The stand-in for a cluster during a local run. It also maps tokens to pods."""

    def __init__(
        self,
        job: Manifest,
        volumes: Mounts,
        workspace: Workspace,
        *,
        notify: Callable[[], None],
        save_job: Callable[[Manifest], None],
        emit: Callable[[JobEvent], None],
        host_return_seconds: float = HOST_RETURN_SECONDS,
    ) -> None:
        """Hold one job; nothing runs yet.

        `volumes` maps mount paths to folders. The caller must hold the lock of `workspace`. `notify` is called when a
        pod starts or ends. A host whose container failed gets a new pod after `host_return_seconds`.
        """
        self._volumes = volumes
        self._workspace = workspace
        self._objects = Objects()
        uid: str = job["metadata"]["uid"]
        self.controllers = Controllers(
            uid, self._objects, self._start_pod, notify=notify, host_return_seconds=host_return_seconds
        )
        self.cluster = LocalCluster(job, self._objects, self.controllers, save_job=save_job, emit=emit)

    async def authenticate(self, token: str, peer: str = "") -> Caller:
        """Return the pod that a token was issued to. Raises `UnauthenticatedCallerError` if there is none."""
        pod = self.controllers.find_pod(token)
        if pod is None:
            raise UnauthenticatedCallerError("the token belongs to no pod of this run")
        metadata = self.cluster.job["metadata"]
        return Caller(pod["metadata"]["uid"], metadata["namespace"], metadata["name"], metadata["uid"])

    async def _start_pod(self, pod: Manifest, token: str) -> Container:
        scratch = self._workspace.pods / pod["metadata"]["name"]
        scratch.mkdir(mode=0o700)
        config_maps = {manifest["metadata"]["name"]: manifest for manifest in self._objects.of_kind("ConfigMap")}
        log = self._workspace.log(slice_of(pod), host_of(pod))
        return await start_container(
            pod,
            token,
            config_maps=config_maps,
            volumes=self._volumes,
            scratch=scratch,
            memory=self._workspace.memory / pod["metadata"]["name"],
            log=log,
        )
