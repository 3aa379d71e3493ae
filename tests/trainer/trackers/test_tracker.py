"""The thread of a tracker: slow, failing and hanging destinations cost points, and neither training nor its end."""

import inspect
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from trainingjob_trainer.trackers import tracker as trackers
from trainingjob_trainer.trackers.tracker import Point, TrackerThread, UnreachableError, close_trackers, tracker_names


class Destination:
    """A tracker that records its points. Each action is replaceable."""

    def __init__(self, **actions: Callable[..., None]) -> None:
        self.points: list[int] = []
        self.closed = False
        self.write: Callable[[Point], None] = lambda point: self.points.append(point.step)
        vars(self).update(actions)

    def connect(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def point(step: int) -> Point:
    return Point("train", step, 1, 0.0, {"loss": 1.0})


def send(destination: Any, steps: range) -> TrackerThread:
    thread = TrackerThread("server", destination)
    for step in steps:
        thread.add(point(step))
    return thread


def test_all_points_are_sent_in_order_before_the_end() -> None:
    destination = Destination()

    close_trackers([send(destination, range(5))])

    assert (destination.points, destination.closed) == ([0, 1, 2, 3, 4], True)


def test_points_wait_until_the_destination_is_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "RETRY_SECONDS", 0.001)
    reached = threading.Event()
    attempts: list[int] = []

    def connect() -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raise ConnectionError("no route")
        reached.set()

    destination = Destination(connect=connect)
    thread = send(destination, range(3))
    assert reached.wait(ENDLESS_SECONDS)
    close_trackers([thread])

    assert destination.points == [0, 1, 2]
    assert caplog.messages == ["tracker connect failed tracker=server error=no route"]


def test_shutdown_does_not_wait_for_an_unreachable_tracker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", ENDLESS_SECONDS)
    again, answers = threading.Event(), threading.Event()
    late = threading.Timer(5, answers.set)
    attempts: list[int] = []

    def connect() -> None:
        attempts.append(1)
        if len(attempts) > 1:
            again.set()
            answers.wait(ENDLESS_SECONDS)
        raise ConnectionError("no route")

    destination = Destination(connect=connect)
    thread = send(destination, range(3))
    assert again.wait(ENDLESS_SECONDS)
    late.start()
    close_trackers([thread])

    assert not answers.is_set()
    assert caplog.messages[-1] == "last metrics not sent tracker=server"
    late.cancel()
    answers.set()
    thread._thread.join(ENDLESS_SECONDS)
    assert (destination.points, destination.closed) == ([], False)


def test_a_point_that_fails_is_lost_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    written: list[int] = []

    def write(point: Point) -> None:
        if point.step < 3:
            raise RuntimeError("refused")
        written.append(point.step)

    close_trackers([send(Destination(write=write), range(5))])

    assert written == [3, 4]
    assert caplog.messages == ["tracker write failed tracker=server error=refused"]


def test_points_wait_while_the_destination_restarts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "RETRY_SECONDS", 0.001)
    written: list[int] = []
    connections: list[int] = []
    down = [True] * 4
    all_written = threading.Event()

    def connect() -> None:
        connections.append(1)
        if len(connections) > 1 and down:
            down.pop()
            raise UnreachableError("no route")

    def write(point: Point) -> None:
        if point.step == 2 and down:
            raise UnreachableError("reset")
        written.append(point.step)
        if point.step == 4:
            all_written.set()

    thread = send(Destination(connect=connect, write=write), range(5))
    assert all_written.wait(ENDLESS_SECONDS)
    close_trackers([thread])

    assert written == [0, 1, 2, 3, 4]
    assert caplog.messages == ["tracker write failed tracker=server error=reset"]


def test_a_point_that_never_arrives_is_lost_after_a_second_attempt() -> None:
    attempts: list[int] = []

    def write(point: Point) -> None:
        attempts.append(point.step)
        if point.step == 1:
            raise UnreachableError("reset")

    close_trackers([send(Destination(write=write), range(3))])

    assert attempts == [0, 1, 1, 2]


def test_shutdown_does_not_wait_for_a_destination_that_was_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", ENDLESS_SECONDS)
    is_lost = threading.Event()

    def connect() -> None:
        if is_lost.is_set():
            raise UnreachableError("no route")

    def write(point: Point) -> None:
        is_lost.set()
        raise UnreachableError(f"reset at {point.step}")

    destination = Destination(connect=connect, write=write)
    thread = send(destination, range(1))
    assert is_lost.wait(ENDLESS_SECONDS)
    close_trackers([thread])

    assert not destination.closed
    assert caplog.messages == [
        "tracker write failed tracker=server error=reset at 0",
        "last metrics not sent tracker=server",
    ]


def test_a_slow_destination_loses_the_oldest_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "MAX_QUEUED", 2)
    answers = threading.Event()
    destination = Destination(connect=lambda: answers.wait(ENDLESS_SECONDS))
    thread = send(destination, range(5))
    answers.set()

    close_trackers([thread])

    assert destination.points == [3, 4]


def test_a_destination_that_hangs_does_not_stop_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.01)
    answers = threading.Event()
    destination = Destination(write=lambda point: answers.wait(ENDLESS_SECONDS))
    hanging = [send(destination, range(1)), send(destination, range(1))]

    close_trackers(hanging)

    assert not destination.closed
    assert caplog.messages == ["last metrics not sent tracker=server"] * 2
    answers.set()
    for thread in hanging:
        thread._thread.join(ENDLESS_SECONDS)


@pytest.mark.parametrize("name", tracker_names())
def test_each_field_of_the_section_has_its_tracker(name: str) -> None:
    create = import_module(f"trainingjob_trainer.trackers.{name}").create_tracker

    assert len(inspect.signature(create).parameters) == 2
