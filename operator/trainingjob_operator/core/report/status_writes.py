"""Status writes: when a status is written, and how it is kept below the size limit.

Transitions are written at once, changing numbers at most every ten seconds per job. Elapsed time alone never causes a
write.
"""

from datetime import datetime

from trainingjob_api.status.progress_status import Goodput
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.times import seconds_between

WRITE_INTERVAL_SECONDS = 10.0
MAX_BYTES = 60_000
"""Size limit of a status in bytes, a little below the documented 64 KiB."""
MIN_KEPT_ATTEMPTS = 5
"""Number of attempts that are kept before pod names are dropped."""
MIN_KEPT_PROBATIONS = 8
"""Number of nodes on probation that are kept before pod names are dropped."""


def should_write(old: TrainingJobStatus, new: TrainingJobStatus, now: datetime) -> bool:
    """Return whether a status should be written now."""
    if _transition_fields(old) != _transition_fields(new):
        return True
    if _without_time(old) == _without_time(new):
        return False
    if old.start_time is None:
        return True  # no time is counted before the start, and hardly anything changes
    counted_seconds = sum(old.goodput.seconds.values())
    return seconds_between(old.start_time, now) - counted_seconds >= WRITE_INTERVAL_SECONDS


def shorten_to_limit(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status shortened to the size limit. The least important parts are dropped first."""
    for shorten in _SHORTENINGS:
        if _size(status) <= MAX_BYTES:
            break
        status = shorten(status)
    return status


def _transition_fields(status: TrainingJobStatus) -> object:
    """Return the part of the status that is written as soon as it changes."""
    return status.model_copy(
        update={
            "conditions": tuple(
                (condition.type, condition.status, condition.reason, condition.observed_generation)
                for condition in status.conditions
            ),
            "preparation": status.preparation is None,
            "progress": status.progress is None,
            "checkpoint": status.checkpoint is None,
            "attempts": tuple(
                attempt.model_copy(update={"last_step": None, "seconds": {}}) for attempt in status.attempts
            ),
            "nodes": tuple((record.node, record.faults) for record in status.nodes),
            "probation": None,  # nodes of a rack leave and return one after another
            "straggler": status.straggler and status.straggler.model_copy(update={"ratio": 0.0}),
            "failing_saves": status.failing_saves and status.failing_saves.since,
            "backup": status.backup is None,
            "failing_copies": status.failing_copies and status.failing_copies.since,
            "export": status.export is None,
            "failing_exports": status.failing_exports and status.failing_exports.since,
            "goodput": None,
            "running_seconds": None,
            "display": (status.display.slices, status.display.mesh, status.display.reason),
        }
    ).__dict__


def _without_time(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the fields that change with elapsed time alone."""
    display = status.display.model_copy(update={"goodput": ""})
    attempts = tuple(attempt.model_copy(update={"seconds": {}}) for attempt in status.attempts)
    return status.model_copy(
        update={"goodput": Goodput(), "running_seconds": 0.0, "display": display, "attempts": attempts}
    )


def _without_old_logs(status: TrainingJobStatus) -> TrainingJobStatus:
    old = tuple(_without_log(attempt) for attempt in status.attempts[:-1])
    return status.model_copy(update={"attempts": old + status.attempts[-1:]})


def _without_log(attempt: Attempt) -> Attempt:
    cause = attempt.cause.model_copy(update={"log": ""}) if attempt.cause else None
    return attempt.model_copy(update={"cause": cause})


def _without_sources(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the statistics of each data source. Totals and warnings stay."""
    data = status.data.model_copy(update={"sources": ()}) if status.data else None
    return status.model_copy(update={"data": data})


def _with_recent_attempts(status: TrainingJobStatus) -> TrainingJobStatus:
    return status.model_copy(update={"attempts": status.attempts[-MIN_KEPT_ATTEMPTS:]})


def _without_pods(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the names of the world's pods. The hash of the members still identifies the world."""
    world = status.world.model_copy(update={"pods": ()}) if status.world else None
    replicas = tuple(
        replica.model_copy(update={"world": replica.world.model_copy(update={"pods": ()})})
        for replica in status.replicas
    )
    return status.model_copy(update={"world": world, "replicas": replicas})


def _with_last_attempt(status: TrainingJobStatus) -> TrainingJobStatus:
    return status.model_copy(update={"attempts": status.attempts[-1:]})


def _with_recent_probations(status: TrainingJobStatus) -> TrainingJobStatus:
    return status.model_copy(update={"probation": status.probation[:MIN_KEPT_PROBATIONS]})


_SHORTENINGS = (
    _without_old_logs,
    _without_sources,
    _with_recent_attempts,
    _with_recent_probations,
    _without_pods,
    _with_last_attempt,
)
"""Ways to shorten a status, in the order of use."""


def _size(status: TrainingJobStatus) -> int:
    return len(status.model_dump_json(by_alias=True, exclude_none=True).encode())
