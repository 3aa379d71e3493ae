"""`drill`: inject a fault into a job, and print its cost beside those of earlier drills."""

import secrets
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.errors import EXIT_NEGATIVE, CommandError
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote_job import Target, annotate, open_remote_job
from trainingjob_operator.cli.report import describe_drills
from trainingjob_operator.cli.watch import PollResult, poll_until_done
from trainingjob_operator.core.decide.drills import describe_drill
from trainingjob_operator.core.manifests import Manifest, get_text, get_value
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import pluralize

DRILL_POLL_SECONDS = 0.5
"""Seconds between two reads of the job: shorter than `POLL_SECONDS`, because a drill takes seconds."""
EXIT_CODES = {"recovered": 0, "withstood": 0, "refused": EXIT_NEGATIVE, "over": EXIT_NEGATIVE}
"""Exit code by the final state of a drill."""


@dataclass(frozen=True)
class DrillOptions:
    """The requested drill. None: the operator chooses the last slice of the world and its last host."""

    kind: DrillKind
    slice: int | None = None
    host: int | None = None
    seconds: int = DRILL_SECONDS


def drill(target: Target, options: DrillOptions, timeout: float) -> int:
    """Request a drill, follow it to its end or for `timeout` seconds, and return the exit code.

    Raises:
        CommandError: there is no such job, it does not allow drills, or it is not training.
    """
    return run_interruptible(_drill(target, options, timeout))


def make_request(job: Manifest, options: DrillOptions, drill_id: str, now: datetime) -> DrillRequest:
    """Return the request for a drill of a job.

    Raises:
        CommandError: the job does not allow drills, or is not training.
    """
    name = get_text(job, "metadata", "name")
    if get_value(job, "spec", "elastic", "faultInjection") != "allowed":
        raise CommandError(
            f"{name} does not allow drills: `spec.elastic.faultInjection` must be `allowed`. The field cannot "
            "be changed after the job was created."
        )
    status = read_status(job)
    if status.phase not in ("Running", "Degraded"):
        raise CommandError(f"{name} is {status.phase or 'new'}: a drill needs a job that trains.")
    return DrillRequest(
        id=drill_id,
        job_uid=get_text(job, "metadata", "uid"),
        kind=options.kind,
        slice=options.slice,
        host=options.host,
        seconds=options.seconds,
        requested=format_time(now),
    )


def list_operations(job: Manifest, request: DrillRequest) -> list[Manifest]:
    """Return the JSON patch that requests a drill."""
    return annotate(job, DRILL_ANNOTATION, request.model_dump_json(by_alias=True, exclude_none=True))


async def _drill(target: Target, options: DrillOptions, seconds: float) -> int:
    async with open_remote_job(target) as remote:
        job = await remote.read_job()
        request = make_request(job, options, secrets.token_hex(4), remote.now())
        await remote.edit(list_operations(job, request))
        timeout_message = (
            f"the drill had no result within {pluralize(round(seconds), 'second')}: see `kubectl trainingjob status "
            f"{target.name}`."
        )
        code = await poll_until_done(
            remote,
            lambda status: _poll(status, request.id),
            interval=DRILL_POLL_SECONDS,
            timeout_seconds=seconds,
            timeout_message=timeout_message,
        )
        if code == 0:
            for line in describe_drills(read_status(await remote.read_job()).drills):
                echo(line)
        return code


def _poll(status: TrainingJobStatus, drill_id: str) -> PollResult:
    """Return the state of a drill.

    Raises:
        CommandError: the job ended before the drill did.
    """
    drill_status = next((drill_status for drill_status in status.drills if drill_status.id == drill_id), None)
    code = EXIT_CODES.get(drill_status.state) if drill_status else None
    if code is None and status.completion_time is not None:
        raise CommandError(f"the job is {status.phase} and made no step after the drill.")
    return PollResult(describe_drill(drill_status) if drill_status else "", code)
