"""`profile` and `stacks`: request traces or thread stacks of a running job, and read the results from its logs."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_api.base import is_bucket
from trainingjob_api.inspection import (
    INSPECTION_ANNOTATION,
    STACKS,
    TRACE_NOT_WRITTEN,
    TRACE_WRITTEN,
    InspectionKind,
    InspectionRequest,
    trace_name,
)
from trainingjob_api.spec.profiling import TracedHosts
from trainingjob_operator.cli.errors import EXIT_NEGATIVE, EXIT_NO_RESULT, CommandError
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote_job import NoLogError, RemoteJob, Target, annotate, open_remote_job
from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import pluralize

POLL_SECONDS = 1.0
"""Seconds between two reads of the logs that lack a result."""
CLOCK_SKEW_SECONDS = 60
"""Seconds by which the clock of a node may be behind that of the API server, whose time selects the lines of a log."""

PHASES_WITHOUT_PROCESSES = ("Queued", "Suspended")
"""Phases of a job whose status still has its last world, but which has no process that could answer."""


@dataclass(frozen=True)
class InspectionOptions:
    """The requested inspection. `steps` are those of a trace."""

    kind: InspectionKind
    hosts: TracedHosts
    steps: int = 1


@dataclass(frozen=True)
class HostResult:
    """What a host wrote into its log. `folder` is that of a written trace; empty: no trace was written."""

    text: str
    folder: str = ""
    is_failure: bool = False


def inspect(target: Target, options: InspectionOptions, timeout: float) -> int:
    """Request an inspection, print the result of each host within `timeout` seconds, and return the exit code.

    Raises:
        CommandError: there is no such job, or it is not training.
    """
    return run_interruptible(_inspect(target, options, timeout))


def make_request(job: Manifest, options: InspectionOptions, inspection_id: str, now: datetime) -> InspectionRequest:
    """Return the request for an inspection of a job.

    Raises:
        CommandError: the job is not training.
    """
    status = read_status(job)
    if status.world is None or status.completion_time is not None or status.phase in PHASES_WITHOUT_PROCESSES:
        name, phase = get_text(job, "metadata", "name"), status.phase or "new"
        raise CommandError(f"{name} is {phase}: no process of it trains. `trainingjob status {name}` shows why.")
    return InspectionRequest(
        id=inspection_id,
        job_uid=get_text(job, "metadata", "uid"),
        kind=options.kind,
        steps=options.steps,
        hosts=options.hosts,
        requested=format_time(now),
    )


def find_pods(job: Manifest, pods: Sequence[Pod], hosts: TracedHosts) -> list[Pod]:
    """Return the pods of the world from which a request gets results, in the order of their processes."""
    world = read_status(job).world
    members = [] if world is None else [name.partition("/")[2] for name in world.pods]
    by_uid = {pod.uid: pod for pod in pods}
    return [by_uid[uid] for uid in (members if hosts == "all" else members[:1]) if uid in by_uid]


def find_result(lines: Sequence[str], kind: InspectionKind, inspection_id: str) -> HostResult | None:  # None: not yet
    """Return the result of an inspection in the lines of a log."""
    return (
        _find_stacks(lines, inspection_id)
        if kind is InspectionKind.STACKS
        else _find_trace(lines, trace_name(inspection_id))
    )


def _find_stacks(lines: Sequence[str], inspection_id: str) -> HostResult | None:
    first, _, last = STACKS.format(id=inspection_id, text="").split("\n")
    begin = next((index for index, line in enumerate(lines) if line.endswith(first)), None)
    end = next((index for index, line in enumerate(lines) if line.endswith(last)), None)
    return None if begin is None or end is None else HostResult("\n".join(lines[begin + 1 : end]))


def _find_trace(lines: Sequence[str], name: str) -> HostResult | None:
    success_marker = TRACE_WRITTEN.partition("{steps}")[0].format(name=name)
    failure_marker = TRACE_NOT_WRITTEN.partition("{error}")[0].format(name=name)
    for line in lines:
        if success_marker in line:
            steps, _, folder = line.partition(success_marker)[2].partition(" folder=")
            return HostResult(f"steps {steps}", folder)
        if failure_marker in line:
            return HostResult(line.partition(failure_marker)[2], is_failure=True)
    return None


async def _inspect(target: Target, options: InspectionOptions, seconds: float) -> int:
    async with open_remote_job(target) as remote:
        job = await remote.read_job()
        request = make_request(job, options, secrets.token_hex(4), remote.now())
        await remote.edit(annotate(job, INSPECTION_ANNOTATION, request.model_dump_json(by_alias=True)))
        since = remote.now() - timedelta(seconds=CLOCK_SKEW_SECONDS)
        results: dict[str, HostResult] = {}
        pending: list[Pod] = []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    pods = find_pods(job, await remote.list_pods(job), options.hosts)
                    pending = [pod for pod in pods if pod.uid not in results]
                    for pod in pending:
                        result = find_result(await _read_log(remote, pod, since), options.kind, request.id)
                        if result is not None:
                            results[pod.uid] = result
                            _print_result(pod, result)
                    if len(results) == len(pods) and pods:
                        break
                    await asyncio.sleep(POLL_SECONDS)
                    job = await remote.read_job()
        except TimeoutError:
            names = ", ".join(f"host {pod.host} of slice {pod.slice}" for pod in pending) or "the job has no host"
            echo(
                f"Error: no result within {pluralize(round(seconds), 'second')}: {names}. A new world or a step that "
                "takes longer delays it: see `trainingjob status`, or raise --timeout.",
                err=True,
            )
            return EXIT_NO_RESULT
        _print_viewer_commands(results.values(), request.id)
        return EXIT_NEGATIVE if any(result.is_failure for result in results.values()) else 0


async def _read_log(remote: RemoteJob, pod: Pod, since: datetime) -> list[str]:
    try:
        return [line.rstrip("\r") async for line in remote.log_lines(pod, since=since)]
    except NoLogError:
        return []


def _print_result(pod: Pod, result: HostResult) -> None:
    name = f"slice {pod.slice} host {pod.host}"
    if "\n" in result.text:
        echo(f"--- {name}: {result.text}")
    else:
        echo(f"{name}: {'no trace: ' if result.is_failure else ''}{result.text}")


def _print_viewer_commands(results: Iterable[HostResult], inspection_id: str) -> None:
    folder = next((result.folder for result in results if result.folder), "")
    if folder:
        location = "" if is_bucket(folder) else ", on the volume of `checkpoint.uri`. Where it is mounted"
        echo(f"trace {trace_name(inspection_id)} is below {folder}{location}:")
        echo(f"  xprof --logdir {folder}        # or: tensorboard --logdir {folder}, with its plugin for profiles")
        echo("Perfetto opens a single host without installation: load its .trace.json.gz at https://ui.perfetto.dev")
