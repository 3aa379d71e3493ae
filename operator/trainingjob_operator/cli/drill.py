"""`drill`: inject a fault into a job, and print its cost beside those of earlier drills."""

import secrets
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.cli.errors import NO_SUCCESS, CommandError
from trainingjob_operator.cli.following import Look, follow
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote import Target, open_remote
from trainingjob_operator.cli.report import describe_drills
from trainingjob_operator.core.manifests import Manifest, dig, text
from trainingjob_operator.core.remember import read_status
from trainingjob_operator.core.running.deciding.drills import describe_drill
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import plural

DRILL_POLL_SECONDS = 0.5
"""Seconds between two reads of the job: shorter than `POLL_SECONDS`, because a drill takes seconds."""
ENDS = {"recovered": 0, "withstood": 0, "refused": NO_SUCCESS, "over": NO_SUCCESS}
"""Exit code by the final state of a drill."""


@dataclass(frozen=True)
class Wanted:
    """The requested drill. None: the operator chooses the last slice of the world and its last host."""

    kind: DrillKind
    slice: int | None = None
    host: int | None = None
    seconds: int = DRILL_SECONDS


def drill(target: Target, wanted: Wanted, timeout: float) -> int:
    """Request a drill, follow it to its end or for `timeout` seconds, and return the exit code.

    Raises:
        CommandError: there is no such job, it does not allow drills, or it is not training.
    """
    return run_interruptible(_drill(target, wanted, timeout))


def make_request(job: Manifest, wanted: Wanted, number: str, now: datetime) -> DrillRequest:
    """Return the request for a drill of a job.

    Raises:
        CommandError: the job does not allow drills, or is not training.
    """
    name = text(job, "metadata", "name")
    if dig(job, "spec", "elastic", "drills") != "allowed":
        raise CommandError(
            f"{name} may not be drilled. A job says so from the start: `elastic: {{drills: allowed}}` in its spec; it "
            "cannot be changed later."
        )
    status = read_status(job)
    if status.phase not in ("Running", "Degraded"):
        raise CommandError(f"{name} is {status.phase or 'new'}: a drill strikes a job that trains.")
    return DrillRequest(
        id=number,
        job_uid=text(job, "metadata", "uid"),
        kind=wanted.kind,
        slice=wanted.slice,
        host=wanted.host,
        seconds=wanted.seconds,
        asked=format_time(now),
    )


def list_operations(job: Manifest, request: DrillRequest) -> list[Manifest]:
    """Return the JSON patch that requests a drill."""
    value = request.model_dump_json(by_alias=True, exclude_none=True)
    key = DRILL_ANNOTATION.replace("/", "~1")
    if isinstance(dig(job, "metadata", "annotations"), dict):
        return [{"op": "add", "path": f"/metadata/annotations/{key}", "value": value}]
    return [{"op": "add", "path": "/metadata/annotations", "value": {DRILL_ANNOTATION: value}}]


async def _drill(target: Target, wanted: Wanted, seconds: float) -> int:
    async with open_remote(target) as remote:
        job = await remote.read_job()
        request = make_request(job, wanted, secrets.token_hex(4), remote.now())
        await remote.edit(list_operations(job, request))
        late = (
            f"nothing has come of it within {plural(round(seconds), 'second')}: see `kubectl trainingjob status` "
            f"{target.name}."
        )
        code = await follow(
            remote,
            lambda status: _look(status, request.id),
            every=DRILL_POLL_SECONDS,
            within=seconds,
            late=late,
        )
        if code == 0:
            for line in describe_drills(read_status(await remote.read_job()).drills):
                echo(line)
        return code


def _look(status: TrainingJobStatus, number: str) -> Look:
    """Return the state of a drill.

    Raises:
        CommandError: the job ended before the drill did.
    """
    one = next((one for one in status.drills if one.id == number), None)
    code = ENDS.get(one.state) if one else None
    if code is None and status.completion_time is not None:
        raise CommandError(f"the job is {status.phase} now, and no world of it made a step after the drill.")
    return Look(describe_drill(one) if one else "", code)
