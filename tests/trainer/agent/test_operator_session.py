"""Reports of an agent: always one open report, a new one for each news, and backoff while the operator is away."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from trainingjob_agent.operator_session import MAX_PENDING, Reporter
from trainingjob_agent.rendezvous import RendezvousError
from trainingjob_api.protocol import Answer, Directive, HostReport

pytestmark = pytest.mark.looptime

REPORT = HostReport(
    job_uid="job", pod="pod", pod_uid="uid", slice=0, host=0, address="127.0.0.1", instance="a", port=1, standby=True
)
NEVER = 3600.0


class Line:
    """The line to an operator that answers each report after a while, or fails to; records when reports began."""

    def __init__(self, *delays: float | RendezvousError, again: float = 1.0) -> None:
        self.began: list[float] = []
        self.heard: list[Answer] = []
        self.cancelled = 0
        self.most_waiting = self._waiting = 0
        self._delays = list(delays)
        self._answer = Answer(directive=Directive.WAIT, report_again_seconds=again)

    async def post(self, report: HostReport) -> Answer:
        assert report is REPORT
        self.began.append(round(asyncio.get_running_loop().time(), 3))
        delay = self._delays.pop(0) if self._delays else NEVER
        if isinstance(delay, RendezvousError):
            raise delay
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._waiting -= 1
        return self._answer


async def report_for(
    seconds: float, line: Line, meanwhile: Callable[[Reporter], Awaitable[None]] | None = None
) -> None:
    reporter = Reporter(line.post, lambda: REPORT, line.heard.append)
    task = asyncio.create_task(reporter.run())
    if meanwhile:
        await meanwhile(reporter)
    with suppress(TimeoutError):
        await asyncio.wait_for(task, seconds)


async def test_an_answer_that_was_held_back_is_followed_by_the_next_report_at_once() -> None:
    line = Line(1.0, 1.0, 1.0)

    await report_for(2.5, line)

    assert line.began == [0, 1, 2]
    assert len(line.heard) == 2


async def test_an_answer_at_once_is_followed_after_the_while_that_it_names() -> None:
    line = Line(0.0, 0.0, 0.0, again=3)

    await report_for(7, line)

    assert line.began == [0, 3, 6]


async def test_news_are_sent_in_a_new_report_beside_the_open_one() -> None:
    line = Line(NEVER, 0.4, again=30)

    async def report_news(reporter: Reporter) -> None:
        await asyncio.sleep(0.5)
        reporter.report_now()

    await report_for(2.0, line, report_news)

    assert line.began == [0, 0.5]
    assert line.cancelled == 1, "a fresher answer ends the wait for an older one"
    assert len(line.heard) == 1


async def test_host_with_constant_news_receives_answers() -> None:
    """Each report is superseded before its answer arrives: if it were dropped then, no answer would ever arrive."""
    line = Line(*[0.3] * 20)

    async def report_news(reporter: Reporter) -> None:
        async def hurry() -> None:
            while True:
                await asyncio.sleep(0.02)
                reporter.report_now()

        tasks.append(asyncio.create_task(hurry()))

    tasks: list[asyncio.Task[None]] = []
    await report_for(2.0, line, report_news)
    tasks[0].cancel()

    assert len(line.began) == 10
    assert len(line.heard) == 9, "all but the last"


async def test_an_answer_to_a_fresher_report_ends_the_wait_for_older_ones() -> None:
    line = Line(1.0, 0.3)

    async def report_news(reporter: Reporter) -> None:
        for moment in (0.1, 0.25):
            asyncio.get_running_loop().call_later(moment, reporter.report_now)

    await report_for(3.0, line, report_news)

    assert line.began == [0, 0.2, 0.4]
    assert (len(line.heard), line.cancelled) == (1, 2), "of the first and of the last, which nobody answers"


async def test_an_operator_that_answers_nothing_holds_few_reports_at_a_time() -> None:
    line = Line()

    async def report_news(reporter: Reporter) -> None:
        for number in range(50):
            asyncio.get_running_loop().call_later(0.1 * number, reporter.report_now)

    await report_for(3.0, line, report_news)

    assert len(line.began) == line.cancelled
    assert line.most_waiting == MAX_PENDING + 1


async def test_news_do_not_wait_for_the_regular_report() -> None:
    line = Line(0.0, 0.0, again=30)

    async def report_news(reporter: Reporter) -> None:
        await asyncio.sleep(0.5)
        reporter.report_now()

    await report_for(10, line, report_news)

    assert line.began == [0, 0.5]


async def test_burst_of_news_is_one_report() -> None:
    line = Line(again=30)

    async def report_news(reporter: Reporter) -> None:
        for _ in range(100):
            await asyncio.sleep(0.01)
            reporter.report_now()

    await report_for(0.5, line, report_news)

    assert len(line.began) <= 7
    assert min(late - early for early, late in zip(line.began, line.began[1:], strict=False)) >= 0.19


async def test_reports_back_off_while_the_operator_is_away(caplog) -> None:
    caplog.set_level("INFO")
    away = [RendezvousError("nobody listens")] * 8
    line = Line(*away, 0.0, again=1000)

    await report_for(60, line)

    gaps = [late - early for early, late in zip(line.began, line.began[1:], strict=False)]
    longest = [1, 2, 4, 5, 5, 5, 5, 5]
    assert len(gaps) == len(longest)
    assert all(limit / 2 - 0.01 <= gap <= limit + 0.01 for gap, limit in zip(gaps, longest, strict=True))
    assert len(set(gaps)) > 4, "hosts must not come back in step"
    assert len(line.heard) == 1
    assert caplog.text.count("operator unreachable") == 1
    assert caplog.text.count("answers again failures=8") == 1


async def test_answer_resets_the_backoff() -> None:
    away = RendezvousError("nobody listens")
    line = Line(away, away, away, 0.0, away, 0.0, again=10)

    await report_for(30, line)

    assert line.began[5] - line.began[4] <= 1.01


async def test_silence_drill_sends_one_report_and_then_none_for_a_while() -> None:
    line = Line(1.0, 1.0, 1.0, 1.0)

    async def fall_silent(reporter: Reporter) -> None:
        await asyncio.sleep(0.5)
        reporter.suspend(20)
        reporter.report_now()

    await report_for(23, line, fall_silent)

    assert line.began == [0, 0.5, 21.5, 22.5]


FAREWELLS: dict[str, float | RendezvousError] = {
    "heard": 0.1,
    "unheard": RendezvousError("nobody listens"),
    "held back": NEVER,
}


@pytest.mark.parametrize("delay", FAREWELLS.values(), ids=FAREWELLS.keys())
async def test_the_last_report_waits_only_a_moment_for_an_answer(delay: float | RendezvousError) -> None:
    line = Line(delay)

    await Reporter(line.post, lambda: REPORT, line.heard.append).send_last_report()

    assert line.began == [0]
    assert asyncio.get_running_loop().time() <= 2
    assert line.heard == []
