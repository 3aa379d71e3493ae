"""The present state of a job, read from its stored status.

`world`, `progress` and the failing writes stay in the status after their world has ended, so that users can read them
and the operator can continue from them. A metric must not export them as present.
"""

from datetime import datetime

from trainingjob_api.status.progress_status import Goodput
from trainingjob_operator.core.goodput import count_until_now
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value, iter_items
from trainingjob_operator.core.report.situation import TRAINING_STAGES
from trainingjob_operator.core.stored_status import read_status

PHASE_NEW = "New"
"""Phase of a job without a status."""


def find_phase(job: Manifest) -> str:
    """Return the phase of a job, `PHASE_NEW` before its first status."""
    return get_text(job, "status", "phase") or PHASE_NEW


def count_present_slices(job: Manifest) -> int:
    """Return the number of slices in worlds that have not ended. Replicas have one world for each slice."""
    status = get_value(job, "status")
    if get_text(status, "completionTime"):
        return 0
    if replicas := list(iter_items(status, "replicas")):
        return sum(not get_text(replica, "ended") for replica in replicas)
    ended = {get_int(attempt, "generation") for attempt in iter_items(status, "attempts") if get_text(attempt, "ended")}
    slices = get_value(status, "world", "slices")
    has_ended = get_int(status, "world", "generation") in ended
    return len(slices) if isinstance(slices, list) and not has_ended else 0


def is_training(job: Manifest) -> bool:
    """Return whether a job has a world that makes steps."""
    return find_phase(job) in TRAINING_STAGES and count_present_slices(job) > 0


def count_present_goodput(job: Manifest, now: datetime) -> Goodput:
    """Return the goodput of a job up to now, up to its end if it is over."""
    status = get_value(job, "status")
    status = status if isinstance(status, dict) else {}
    read = read_status({"status": {field: status[field] for field in ("goodput", "startTime") if field in status}})
    return read.goodput if get_text(status, "completionTime") else count_until_now(read, now)
