"""Clocks: what becomes of the times in a status when the clock is set that they were written by.

All ages that a job is judged by, its deadline, pauses and waits, and the seconds of its ledger, lie between a written
time and now. When the API server's clock is set, by an hour after an outage of its time service, an hour seems to have
passed and has not. The operator's own monotonic clock tells the one from the other. So the times are moved as the clock
was, and lie as long ago as before. Only what was set while no operator was there to see it counts as time that passed.
"""

from datetime import timedelta

from pydantic import BaseModel

from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.core.times import format_time, parse_time

TIMES = frozenset(
    {
        "asked",
        "completion_time",
        "ended",
        "failed",
        "injected",
        "last_transition_time",
        "since",
        "start_time",
        "started",
        "time",
        "until",
    }
)
"""Fields of a status that hold a time of day."""


def move_times(status: TrainingJobStatus, seconds: float) -> TrainingJobStatus:
    """Return a status whose times are of a clock that was set by so many seconds, forward if positive."""
    return _move_all(status, timedelta(seconds=seconds)) if seconds else status


def _move_all[M: BaseModel](model: M, by: timedelta) -> M:
    changes = {name: _move_time(one, by) if name in TIMES else _move(one, by) for name, one in model}
    return model.model_copy(update=changes)


def _move(value: object, by: timedelta) -> object:
    if isinstance(value, BaseModel):
        return _move_all(value, by)
    return tuple(_move(one, by) for one in value) if isinstance(value, tuple) else value


def _move_time(written: str | None, by: timedelta) -> str | None:
    time = parse_time(written)
    return format_time(time + by) if time else written
