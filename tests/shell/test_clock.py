"""The time of day is the API server's, however wrong the machine's own clock is."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from tests.shell.conftest import ApiServer
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.clock import ServerClock
from trainingjob_operator.shell.kinds import TRAINING_JOB

MACHINE = datetime(2026, 11, 22, 9, 0, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Monotonic:
    seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


def make() -> tuple[ServerClock, Monotonic]:
    monotonic = Monotonic()
    return ServerClock(monotonic, lambda: MACHINE), monotonic


def header(when: datetime) -> str:
    return when.strftime("%a, %d %b %Y %H:%M:%S GMT")


def test_before_any_answer_it_is_the_machines() -> None:
    clock, monotonic = make()
    monotonic.seconds += 90

    assert clock.now() == MACHINE + timedelta(seconds=90)


@pytest.mark.parametrize("off", [HOUR, -HOUR, timedelta(days=400)])
def test_an_answer_sets_it(off: timedelta) -> None:
    clock, monotonic = make()

    clock.synchronize(header(MACHINE + off))
    monotonic.seconds += 10

    assert clock.now() == MACHINE + off + timedelta(seconds=10)
    assert clock.total_adjustment == off.total_seconds()


def test_clock_reports_the_total_change() -> None:
    clock, _ = make()

    for off in (HOUR, 2 * HOUR, HOUR / 2):
        clock.synchronize(header(MACHINE + off))

    assert clock.total_adjustment == 1800.0


def test_answer_without_a_valid_date_changes_nothing() -> None:
    clock, _ = make()

    clock.synchronize(header(MACHINE - timedelta(seconds=4)))

    assert (clock.now(), clock.total_adjustment) == (MACHINE, 0.0)


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Nov 2026 09:00:00 GMT", "Mon, 23 Nov 2026 09:00:00 -0000"])
def test_invalid_date_is_ignored(date: str) -> None:
    clock, _ = make()

    clock.synchronize(date)

    assert clock.now() == MACHINE


@pytest.fixture
def set_server_clock(api_server: ApiServer) -> Callable[[datetime], None]:
    def set_it(when: datetime) -> None:
        def answer(_: web.Request) -> web.Response:
            return web.json_response({}, headers={"Date": header(when)})

        api_server.fault = answer

    return set_it


async def test_each_answer_of_the_server_sets_the_clock(api: Api, set_server_clock: Callable[[datetime], None]) -> None:
    for off in (HOUR, -HOUR):
        set_server_clock(datetime.now(UTC) + off)
        await api.get(TRAINING_JOB, "research", "llama")

        assert abs(api.clock.now() - datetime.now(UTC) - off) < timedelta(minutes=1)
