"""`scale`, `suspend` and `resume`: edits of a running job, each a single patch that the webhook checks."""

from trainingjob_operator.cli.errors import CommandError, UsageError
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote_job import RemoteJob, Target, open_remote_job
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.validate_update import describe_next_job

FIELDS = ("count", "min", "max")


def scale(target: Target, bounds: dict[str, int | None]) -> None:
    """Change the allowed number of slices. `bounds` holds the fields of `spec.slices` to set.

    Raises:
        CommandError: there is no such job, or the change is refused; the text is the API server's.
        UsageError: no bound is set, or the bounds contradict each other.
    """
    changes = {field: value for field, value in bounds.items() if value is not None}
    if not changes:
        raise UsageError("no change is requested: set --min or --max, or --count for a fixed size.")
    if "count" in changes and len(changes) > 1:
        raise UsageError("--count is a fixed size and must not be combined with --min or --max.")
    echo(run_interruptible(_scale(target, changes)))


def set_suspend(target: Target, *, suspend: bool) -> None:
    """Suspend or resume a job.

    Raises:
        CommandError: there is no such job, or the change is refused.
    """
    echo(run_interruptible(_set_suspend(target, suspend=suspend)))


async def _scale(target: Target, changes: dict[str, int]) -> str:
    async with open_remote_job(target) as remote:
        job = await _read_unfinished_job(remote)
        before = {field: get_int(job, "spec", "slices", field) for field in FIELDS}
        after = _merge(before, changes)
        if after == before:
            return f"{target.name} already has {_describe(before)}"
        await remote.edit(_list_operations(before, after))
    return f"{target.name}: {_describe(before)} changed to {_describe(after)}"


async def _set_suspend(target: Target, *, suspend: bool) -> str:
    async with open_remote_job(target) as remote:
        job = await _read_unfinished_job(remote)
        if (get_value(job, "spec", "suspend") is True) == suspend:
            return f"{target.name} is already suspended" if suspend else f"{target.name} is not suspended"
        await remote.edit([{"op": "add", "path": "/spec/suspend", "value": suspend}])
    return f"{target.name} saves and releases its pods" if suspend else f"{target.name} resumes"


async def _read_unfinished_job(remote: RemoteJob) -> Manifest:
    """Return the job. Raises `CommandError` if it is over: without a webhook, its edits are stored without effect."""
    job = await remote.read_job()
    status = read_status(job)
    if status.completion_time is not None:
        name = get_text(job, "metadata", "name")
        raise CommandError(f"{name} is {status.phase}: a job that is over cannot be changed. {describe_next_job(job)}")
    return job


def _merge(before: dict[str, int | None], changes: dict[str, int]) -> dict[str, int | None]:
    """Return all bounds. `count` clears `min` and `max`. A fixed job that becomes elastic keeps its size as a bound."""
    if "count" in changes:
        return {"count": changes["count"], "min": None, "max": None}
    fixed_count = before["count"]
    return {"count": None} | {field: changes.get(field, before[field] or fixed_count) for field in ("min", "max")}


def _list_operations(before: dict[str, int | None], after: dict[str, int | None]) -> list[Manifest]:
    """Return the JSON patch between two sets of bounds."""
    operations: list[Manifest] = []
    for field in FIELDS:
        path = f"/spec/slices/{field}"
        if after[field] is None and before[field] is not None:
            operations.append({"op": "remove", "path": path})
        elif after[field] != before[field]:
            operations.append({"op": "add", "path": path, "value": after[field]})
    return operations


def _describe(bounds: dict[str, int | None]) -> str:
    count, min_slices, max_slices = (bounds[field] for field in FIELDS)
    return f"{min_slices} to {pluralize(max_slices or 0, 'slice')}" if count is None else pluralize(count, "slice")
