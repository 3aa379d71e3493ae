"""Timestamps in the format of the Kubernetes API: RFC 3339 in UTC."""

from datetime import UTC, datetime


def format_time(time: datetime) -> str:
    """Return a timestamp with milliseconds: `2026-11-21T10:06:27.041Z`."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_display_time(time: datetime) -> str:
    """Return a human-readable timestamp: `2026-11-21 10:06:27 UTC`."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parse_time(text: str | None) -> datetime | None:  # None: not a timestamp
    """Return the time that a timestamp stands for. A timestamp without a time zone is UTC."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def clamp_to_now(text: str | None, now: datetime) -> str | None:  # None: not a timestamp
    """Return the earlier of a timestamp and now. A timestamp lies in the future after a clock was set back."""
    time = parse_time(text)
    return None if time is None else text if time <= now else format_time(now)


def seconds_between(start: str | None, end: datetime) -> float:
    """Return the seconds from a timestamp to `end`; 0 if the timestamp is missing or later than `end`."""
    begin = parse_time(start)
    return max((end - begin).total_seconds(), 0.0) if begin else 0.0
