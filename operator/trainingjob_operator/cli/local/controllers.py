"""JobSet, the Job controller and the kubelet of a local run: one loop that runs processes for the objects.

The loop is level-based, like theirs: calls only change objects. Each round creates missing objects, deletes orphans,
and returns the time of the next round.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from trainingjob_operator.cli.local.child_manifests import (
    ContainerExit,
    child_jobs,
    host_of,
    make_pod,
    slice_of,
    with_exited_container,
    with_running_container,
)
from trainingjob_operator.cli.local.container import Container
from trainingjob_operator.cli.local.objects import Objects
from trainingjob_operator.core.manifests import owner_uid
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.interfaces import Manifest

type StartPod = Callable[[Manifest, str], Awaitable[Container]]
"""Starts a pod's container; the second argument is the pod's token."""

GRACE_SECONDS = 30.0
"""Kubernetes' default grace period of a pod."""
CANNOT_START = 128
"""Exit code that Kubernetes reports for a container that could not be started."""
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of the random suffixes in Kubernetes' names."""


class Controllers:
    """Keeps a container running for each host of each slice, until it exits with 0 or its owner is deleted."""

    def __init__(
        self,
        job_uid: str,
        objects: Objects,
        start_pod: StartPod,
        *,
        notify: Callable[[], None],
        host_return_seconds: float,
    ) -> None:
        """Follow `objects`.

        `notify` is called when a pod starts or ends. A host whose container failed gets a new pod after
        `host_return_seconds`, as if its node had to return first.
        """
        self._job_uid = job_uid
        self._objects = objects
        self._start_pod = start_pod
        self._notify = notify
        self._host_return_seconds = host_return_seconds
        self._containers: dict[str, Container] = {}  # running containers, by pod UID
        self._tokens: dict[str, str] = {}  # token -> pod UID
        self._return_times: dict[tuple[str, int], float] = {}  # (Job name, host number) -> time of return
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the objects while the context lasts; at its end kill the remaining processes."""
        async with asyncio.TaskGroup() as group:
            loop_task = group.create_task(self._reconcile_loop())
            try:
                yield
            finally:
                loop_task.cancel()
                self.kill_all()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_containers(self) -> int:
        """Return the number of running containers."""
        return len(self._containers)

    def put(self, manifest: Manifest) -> None:
        """Create or replace an object."""
        self._objects.put(manifest, datetime.now(UTC))
        self._changed.set()

    def delete(self, manifest: Manifest, grace_seconds: float | None = None) -> None:
        """Delete an object. A pod disappears when its container has ended, any other object at once."""
        if "deletionTimestamp" in manifest["metadata"]:
            return
        container = self._containers.get(manifest["metadata"]["uid"])
        if container is None:
            self._objects.remove(manifest)
        else:
            now = datetime.now(UTC)
            terminating = {**manifest, "metadata": {**manifest["metadata"], "deletionTimestamp": format_time(now)}}
            self._objects.put(terminating, now)
            default_seconds = manifest["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS)
            self._spawn(container.stop(default_seconds if grace_seconds is None else grace_seconds))
        self._changed.set()

    def find_pod(self, token: str) -> Manifest | None:  # None: no existing pod has that token
        """Return the pod that a token was issued to."""
        uid = self._tokens.get(token)
        return None if uid is None else self._objects.find(uid)

    def running_pods(self) -> list[Manifest]:
        """Return the pods with running containers, sorted by name."""
        return [pod for pod in self._objects.of_kind("Pod") if pod["metadata"]["uid"] in self._containers]

    def containers_of(self, number: int) -> list[Container]:
        """Return the running containers of a slice, sorted by host."""
        pods = sorted((pod for pod in self.running_pods() if slice_of(pod) == number), key=host_of)
        return [self._containers[pod["metadata"]["uid"]] for pod in pods]

    def kill_slice(self, number: int) -> None:
        """Kill all processes of a slice at once, as in a power failure."""
        for container in self.containers_of(number):
            container.kill()

    def kill_all(self) -> None:
        """Kill every process."""
        for container in self._containers.values():
            container.kill()

    async def _reconcile_loop(self) -> None:
        while True:
            self._changed.clear()
            delay = await self._reconcile()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), delay)

    async def _reconcile(self) -> float | None:  # None: no failed host is due
        """Create missing objects and delete orphans; return the seconds until a failed host returns."""
        for orphan in self._objects.find_orphans(self._job_uid):
            self.delete(orphan)
        for jobset in self._objects.of_kind("JobSet"):
            self._make_jobs(jobset)
        now = asyncio.get_running_loop().time()
        delays = []
        for job in self._objects.of_kind("Job"):
            for host in self._missing_hosts(job):
                delay = self._return_times.get((job["metadata"]["name"], host), now) - now
                if delay > 0:
                    delays.append(delay)
                else:
                    await self._make_pod(job, host)
        return min(delays, default=None)

    def _make_jobs(self, jobset: Manifest) -> None:
        for job in child_jobs(jobset):
            # Pods can outlive their deleted Job: two processes must not represent one host.
            old_pods = [pod for pod in self._objects.of_kind("Pod") if _job_name(pod) == job["metadata"]["name"]]
            if job not in self._objects and not old_pods:
                self._objects.put(job, datetime.now(UTC))

    def _missing_hosts(self, job: Manifest) -> list[int]:
        """Return the hosts of a Job that have no pod that is pending, running or succeeded."""
        pods = [pod for pod in self._objects.of_kind("Pod") if owner_uid(pod) == job["metadata"]["uid"]]
        covered = {
            host_of(pod)
            for pod in pods
            if pod["status"]["phase"] != "Failed" and "deletionTimestamp" not in pod["metadata"]
        }
        return [host for host in range(job["spec"]["completions"]) if host not in covered]

    async def _make_pod(self, job: Manifest, host: int) -> None:
        suffix = "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(5))
        pod = self._objects.put(make_pod(job, host, suffix), datetime.now(UTC))
        token = secrets.token_urlsafe()
        self._tokens[token] = pod["metadata"]["uid"]
        try:
            container = await self._start_pod(pod, token)
        except OSError as error:  # out of memory or process ids: a later attempt may succeed
            self._end_pod(pod, ContainerExit(CANNOT_START, message=str(error)))
            return
        self._containers[pod["metadata"]["uid"]] = container
        now = datetime.now(UTC)
        if self._objects.find(pod["metadata"]["uid"]) is None:  # deleted meanwhile
            container.kill()
        else:
            self._objects.put(with_running_container(pod, now), now)
        self._spawn(self._watch(pod, container))
        self._notify()

    async def _watch(self, pod: Manifest, container: Container) -> None:
        container_exit = await container.wait()
        del self._containers[pod["metadata"]["uid"]]
        self._end_pod(pod, container_exit)

    def _end_pod(self, started_pod: Manifest, container_exit: ContainerExit) -> None:
        """Record how a pod ended, or remove the pod if it was deleted meanwhile."""
        pod = self._objects.find(started_pod["metadata"]["uid"])
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            self._objects.remove(pod)
        elif pod is not None:
            now = datetime.now(UTC)
            self._objects.put(with_exited_container(pod, container_exit, now), now)
            if container_exit.exit_code != 0:
                self._count_failure(pod, now)
                return_at = asyncio.get_running_loop().time() + self._host_return_seconds
                self._return_times[_job_name(pod), host_of(pod)] = return_at
        self._changed.set()
        self._notify()

    def _count_failure(self, pod: Manifest, now: datetime) -> None:
        job = self._objects.find(owner_uid(pod))
        if job is not None:
            self._objects.put({**job, "status": {"failed": job["status"].get("failed", 0) + 1}}, now)

    def _spawn(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _job_name(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])
