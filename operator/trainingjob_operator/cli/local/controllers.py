"""JobSet, the Job controller and the kubelet of a local run: one loop that makes processes follow the objects.

Like theirs, the loop is level-based: calls only change objects, each round makes what is missing, ends what lost its
owner, and says when it wants to look again.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from trainingjob_operator.cli.local.children import (
    ContainerEnd,
    child_jobs,
    ended_pod,
    host_of,
    make_pod,
    slice_of,
    started_pod,
)
from trainingjob_operator.cli.local.container import Container
from trainingjob_operator.cli.local.objects import Objects
from trainingjob_operator.core.manifests import owner_uid
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.ports import Manifest

type StartPod = Callable[[Manifest, str], Awaitable[Container]]
"""Start a pod's container; the second argument is the pod's token."""

GRACE_SECONDS = 30.0
"""What Kubernetes gives a pod that says nothing of it."""
CANNOT_START = 128
"""The exit code that Kubernetes gives a container that could not be started."""
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""The characters that Kubernetes makes names of."""


class Controllers:
    """Keeps a container running for each host of each slice, until it exits with 0 or its owner goes."""

    def __init__(
        self,
        job_uid: str,
        objects: Objects,
        start_pod: StartPod,
        *,
        notify: Callable[[], None],
        away_seconds: float,
    ) -> None:
        """Follow `objects`.

        `notify` is called when a pod came or ended. A host whose container died gets a new pod after `away_seconds`, as
        if its node had to come back first.
        """
        self._job_uid = job_uid
        self._objects = objects
        self._start_pod = start_pod
        self._notify = notify
        self._away_seconds = away_seconds
        self._containers: dict[str, Container] = {}  # by the pod's UID, while it runs
        self._tokens: dict[str, str] = {}  # the pod's UID by its token
        self._back_at: dict[tuple[str, int], float] = {}  # when a dead host is back, by its Job's name and its number
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the objects while the context lasts; kill what still runs at its end."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow())
            try:
                yield
            finally:
                following.cancel()
                self.kill_all()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_containers(self) -> int:
        """Return how many containers run."""
        return len(self._containers)

    def put(self, manifest: Manifest) -> None:
        """Keep an object, new or changed."""
        self._objects.put(manifest, datetime.now(UTC))
        self._changed.set()

    def delete(self, manifest: Manifest, grace_seconds: float | None = None) -> None:
        """Delete an object. A pod goes when its container has ended, all else at once."""
        if "deletionTimestamp" in manifest["metadata"]:
            return
        container = self._containers.get(manifest["metadata"]["uid"])
        if container is None:
            self._objects.remove(manifest)
        else:
            now = datetime.now(UTC)
            marked = {**manifest, "metadata": {**manifest["metadata"], "deletionTimestamp": format_time(now)}}
            self._objects.put(marked, now)
            own = manifest["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS)
            self._spawn(container.stop(own if grace_seconds is None else grace_seconds))
        self._changed.set()

    def find_pod(self, token: str) -> Manifest | None:  # None: no pod that is still there was given that token
        """Return the pod that a token was given to."""
        uid = self._tokens.get(token)
        return None if uid is None else self._objects.find(uid)

    def running_pods(self) -> list[Manifest]:
        """Return the pods whose containers run, by name."""
        return [pod for pod in self._objects.of_kind("Pod") if pod["metadata"]["uid"] in self._containers]

    def containers_of(self, number: int) -> list[Container]:
        """Return the containers of a slice that run, by host."""
        pods = sorted((pod for pod in self.running_pods() if slice_of(pod) == number), key=host_of)
        return [self._containers[pod["metadata"]["uid"]] for pod in pods]

    def kill_slice(self, number: int) -> None:
        """Kill all processes of a slice at once, as a power cut would."""
        for container in self.containers_of(number):
            container.kill()

    def kill_all(self) -> None:
        """Kill every process."""
        for container in self._containers.values():
            container.kill()

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            wait = await self._settle()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)

    async def _settle(self) -> float | None:  # None: nothing becomes due by itself
        """Make what is missing and end what lost its owner; return the seconds until a dead host is back."""
        for orphan in self._objects.find_orphans(self._job_uid):
            self.delete(orphan)
        for jobset in self._objects.of_kind("JobSet"):
            self._make_jobs(jobset)
        clock = asyncio.get_running_loop().time()
        waits = []
        for job in self._objects.of_kind("Job"):
            for host in self._missing_hosts(job):
                wait = self._back_at.get((job["metadata"]["name"], host), clock) - clock
                if wait > 0:
                    waits.append(wait)
                else:
                    await self._make_pod(job, host)
        return min(waits, default=None)

    def _make_jobs(self, jobset: Manifest) -> None:
        for job in child_jobs(jobset):
            # A Job of that name may be gone before its pods are: two processes must not stand for one host.
            leftover = [pod for pod in self._objects.of_kind("Pod") if _job_name(pod) == job["metadata"]["name"]]
            if job not in self._objects and not leftover:
                self._objects.put(job, datetime.now(UTC))

    def _missing_hosts(self, job: Manifest) -> list[int]:
        """Return the hosts of a Job that have no pod which runs, or has run to its good end."""
        pods = [pod for pod in self._objects.of_kind("Pod") if owner_uid(pod) == job["metadata"]["uid"]]
        present = {
            host_of(pod)
            for pod in pods
            if pod["status"]["phase"] != "Failed" and "deletionTimestamp" not in pod["metadata"]
        }
        return [host for host in range(job["spec"]["completions"]) if host not in present]

    async def _make_pod(self, job: Manifest, host: int) -> None:
        suffix = "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(5))
        pod = self._objects.put(make_pod(job, host, suffix), datetime.now(UTC))
        token = secrets.token_urlsafe()
        self._tokens[token] = pod["metadata"]["uid"]
        try:
            container = await self._start_pod(pod, token)
        except OSError as error:  # no memory, no process numbers left: it may work later
            self._end_pod(pod, ContainerEnd(CANNOT_START, message=str(error)))
            return
        self._containers[pod["metadata"]["uid"]] = container
        now = datetime.now(UTC)
        if self._objects.find(pod["metadata"]["uid"]) is None:  # deleted meanwhile
            container.kill()
        else:
            self._objects.put(started_pod(pod, now), now)
        self._spawn(self._watch(pod, container))
        self._notify()

    async def _watch(self, pod: Manifest, container: Container) -> None:
        end = await container.wait()
        del self._containers[pod["metadata"]["uid"]]
        self._end_pod(pod, end)

    def _end_pod(self, started: Manifest, end: ContainerEnd) -> None:
        """Write down how a pod ended; one that was deleted meanwhile is gone with that."""
        pod = self._objects.find(started["metadata"]["uid"])
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            self._objects.remove(pod)
        elif pod is not None:
            now = datetime.now(UTC)
            self._objects.put(ended_pod(pod, end, now), now)
            if end.exit_code != 0:
                self._count_failure(pod, now)
                back_at = asyncio.get_running_loop().time() + self._away_seconds
                self._back_at[_job_name(pod), host_of(pod)] = back_at
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
