"""Rejected requests: when they are repeated, and which are forgotten."""

from datetime import timedelta

from tests.support.builders import NOW
from trainingjob_operator.shell.rejected_requests import RETRY_SECONDS, RejectedRequests


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> object:
        return NOW + timedelta(seconds=self.seconds)


def test_each_request_waits_after_its_last_rejection_also_if_the_clock_is_set_back() -> None:
    clock = Clock()
    rejections: RejectedRequests[str] = RejectedRequests(clock)  # type: ignore[arg-type]
    rejections.add("job", "pod", "it stays")
    assert rejections.is_recent("job", "pod")
    assert not rejections.is_recent("job", "another pod")
    assert not rejections.is_recent("another job", "pod")

    clock.seconds = RETRY_SECONDS - 0.1
    assert rejections.is_recent("job", "pod")
    clock.seconds = RETRY_SECONDS
    assert not rejections.is_recent("job", "pod")
    clock.seconds = -3600.0
    assert not rejections.is_recent("job", "pod")


def test_accepted_requests_and_deleted_jobs_are_forgotten() -> None:
    rejections: RejectedRequests[str] = RejectedRequests(Clock())  # type: ignore[arg-type]
    for job in ("job", "another job"):
        rejections.add(job, "pod", "it stays")
        rejections.add(job, "jobset", "it stays too")

    rejections.keep("job", {"jobset"})
    assert rejections.list_problems("job") == ["it stays too"]
    rejections.discard("job", "jobset")
    rejections.discard("job", "jobset")
    rejections.forget("another job")
    assert rejections.list_problems("job") == rejections.list_problems("another job") == []
