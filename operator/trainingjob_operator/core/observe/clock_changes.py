"""Clock changes: moves the times in a status when the API server's clock is set.

The deadline, pauses, waits and goodput of a job are differences between a written time and now. If the API server's
clock is set by an hour, an hour seems to have passed. The operator's monotonic clock reveals the difference. All
written times are then moved by the same amount, so their ages stay correct. A change while no operator runs goes
unnoticed and counts as elapsed time.
"""

from datetime import timedelta

from pydantic import BaseModel

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.times import format_time, parse_time

TIME_FIELDS = frozenset(
    {
        "completion_time",
        "ended",
        "failed",
        "injected",
        "last_transition_time",
        "leaving_since",
        "prepared",
        "released",
        "requested",
        "since",
        "start_time",
        "started",
        "time",
        "until",
    }
)
"""Fields of a status that hold a wall-clock time."""


def shift_times(status: TrainingJobStatus, seconds: float) -> TrainingJobStatus:
    """Return a status with all times moved by a number of seconds, forward if positive."""
    return _shift_model(status, timedelta(seconds=seconds)) if seconds else status


def _shift_model[M: BaseModel](model: M, delta: timedelta) -> M:
    changes = {
        name: _shift_time(value, delta) if name in TIME_FIELDS else _shift_value(value, delta) for name, value in model
    }
    return model.model_copy(update=changes)


def _shift_value(value: object, delta: timedelta) -> object:
    if isinstance(value, BaseModel):
        return _shift_model(value, delta)
    return tuple(_shift_value(item, delta) for item in value) if isinstance(value, tuple) else value


def _shift_time(value: str | None, delta: timedelta) -> str | None:
    time = parse_time(value)
    return format_time(time + delta) if time else value
