"""A TrainingJob on a cluster: reads and edits of the job, its pods and logs, with readable errors."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainingjob_operator.cli.errors import CommandError, NoResultError, UsageError
from trainingjob_operator.core.manifests import Children, Manifest, get_text, get_value
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.core.observe.pods import Pod, read_pods
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.kinds import POD, TRAINING_JOB
from trainingjob_operator.shell.login import connect_as_user


@dataclass(frozen=True)
class Target:
    """The job that the user means. None: the kubeconfig's value."""

    name: str
    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None


class RemoteJob:
    """One job on a cluster."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        """Name a job; it need not exist."""
        self._api = api
        self._namespace = namespace
        self._name = name

    def now(self) -> datetime:
        """Return the API server's time of day; valid after its first answer."""
        return self._api.clock.now()

    async def read_job(self) -> Manifest:
        """Return the current job. Raises `NoResultError` if there is none."""
        job = await self._api.get(TRAINING_JOB, self._namespace, self._name)
        if job is None:
            raise self._no_such_job()
        return job

    async def edit(self, operations: list[Manifest]) -> None:
        """Apply a JSON patch to the job. Raises `CommandError` with the API server's message if it is refused."""
        try:
            await self._api.patch(TRAINING_JOB, self._namespace, self._name, operations)
        except NotFoundError as error:
            raise self._no_such_job() from error
        except ConflictError as error:
            raise NoResultError("another client changed the job at the same time: try again.") from error
        except ForbiddenError as error:
            raise CommandError(str(error)) from error

    async def list_pods(self, job: Manifest) -> list[Pod]:
        """Return the job's pods ordered by slice, host and age, oldest first."""
        labels = f"{UID_LABEL}={get_text(job, 'metadata', 'uid')}"
        pages = [page async for page in self._api.list_pages(POD, self._namespace, labels=labels)]
        children = Children(pods=tuple(manifest for page in pages for manifest in page.items))
        return sorted(read_pods(children, self.now()), key=lambda pod: (pod.slice, pod.host, pod.created))

    async def log_lines(
        self, pod: Pod, *, follow: bool = False, tail: int | None = None, since: datetime | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines of a pod's log: the last `tail` lines, or those after `since`.

        Raises `NoLogError` if the log does not exist yet or any more.
        """
        query = {"follow": "true"} if follow else {}
        query |= {} if tail is None else {"tailLines": str(tail)}
        query |= {} if since is None else {"sinceTime": format_time(since)}
        try:
            async for line in self._api.log_lines(self._namespace, pod.name, query):
                yield line
        except (NotFoundError, ForbiddenError) as error:  # the pod is gone, or its container has not started
            raise NoLogError(str(error)) from error

    def _no_such_job(self) -> NoResultError:
        return NoResultError(
            f'there is no TrainingJob "{self._name}" in namespace {self._namespace}. '
            "`kubectl get trainingjobs -A` lists all."
        )


def annotate(job: Manifest, annotation: str, value: str) -> list[Manifest]:
    """Return the JSON patch that sets an annotation of a job."""
    if isinstance(get_value(job, "metadata", "annotations"), dict):
        return [{"op": "add", "path": f"/metadata/annotations/{annotation.replace('/', '~1')}", "value": value}]
    return [{"op": "add", "path": "/metadata/annotations", "value": {annotation: value}}]


class NoLogError(Exception):
    """The log of a pod does not exist yet or any more. The text is the API server's."""


@contextlib.asynccontextmanager
async def open_remote_job(target: Target) -> AsyncIterator[RemoteJob]:
    """Connect to the cluster of a job.

    Raises:
        UsageError: there is no kubeconfig.
        NoResultError: the cluster is unreachable, refuses a request, has no TrainingJob definition, or rejects the
            credentials.
    """
    kubeconfig = _find_kubeconfig(target)
    logging.getLogger("kubernetes").addHandler(logging.NullHandler())  # errors are reported below
    try:
        api, namespace = await connect_as_user(kubeconfig, target.context)
        async with api:
            yield RemoteJob(api, target.namespace or namespace, target.name)
    except MissingKindError as error:
        raise NoResultError("this cluster does not serve TrainingJobs: install the operator first.") from error
    except ForbiddenError as error:
        raise NoResultError(f"the cluster rejects the request: {error}") from error
    except ClusterUnavailableError as error:
        raise NoResultError(f"the cluster cannot be reached: {error}") from error


def _find_kubeconfig(target: Target) -> str:
    """Return the kubeconfig path, or several paths in the form of KUBECONFIG.

    Raises:
        UsageError: none of the files exists.
    """
    default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    paths = str(target.kubeconfig) if target.kubeconfig else default
    if not any(Path(path).is_file() for path in paths.split(os.pathsep)):
        raise UsageError(f"there is no kubeconfig at {paths}. Set one with --kubeconfig.")
    return paths
