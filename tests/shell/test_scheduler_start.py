"""After a start, idle jobs are reconciled in turn, and none later than its interval."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import pytest

from trainingjob_operator.shell.job_evaluation import IDLE_REQUEUE_SECONDS
from trainingjob_operator.shell.scheduler import Scheduler

pytestmark = pytest.mark.looptime

NAMES = [f"job-{number}" for number in range(200)]
type Times = dict[str, list[float]]
type Start = Callable[[float], tuple[Scheduler, Times]]


@pytest.fixture
async def paused() -> AsyncIterator[Start]:
    """Return a function that returns a paused scheduler whose jobs need the same delay, and their reconcile times."""
    schedulers = []

    def make(delay: float) -> tuple[Scheduler, Times]:
        times: Times = defaultdict(list)

        async def reconcile(namespace: str, name: str) -> float:
            times[name].append(asyncio.get_running_loop().time())
            return delay

        scheduler = Scheduler(reconcile)
        schedulers.append(scheduler)
        for name in NAMES:
            scheduler.wake("ns", name)
        return scheduler, times

    yield make
    for scheduler in schedulers:
        await scheduler.stop()


def assert_spread(moments: list[float], begin: float) -> None:
    """Check that moments lie within the idle interval after `begin`, about as many in each sixth of it."""
    sixth = IDLE_REQUEUE_SECONDS / 6
    counts = [
        sum(begin + part * sixth <= moment < begin + (part + 1) * sixth for moment in moments) for part in range(6)
    ]
    assert sum(counts) == len(NAMES), "no job may be reconciled later than its interval"
    assert min(counts) > len(NAMES) / 12, counts


async def test_idle_jobs_are_spread_after_a_start_and_keep_the_interval_then(paused: Start) -> None:
    scheduler, times = paused(IDLE_REQUEUE_SECONDS)
    scheduler.resume()
    await asyncio.sleep(3 * IDLE_REQUEUE_SECONDS - 1)

    assert {first for first, *_ in times.values()} == {0.0}
    assert_spread([second for _, second, *_ in times.values()], begin=0.0)
    for _, second, third, *_ in times.values():
        assert third == pytest.approx(second + IDLE_REQUEUE_SECONDS)


async def test_each_job_has_the_same_moment_after_each_start(paused: Start) -> None:
    scheduler, times = paused(IDLE_REQUEUE_SECONDS)
    scheduler.resume()
    await asyncio.sleep(IDLE_REQUEUE_SECONDS - 0.1)
    scheduler.pause()
    again = asyncio.get_running_loop().time()
    scheduler.resume()
    await asyncio.sleep(IDLE_REQUEUE_SECONDS - 0.1)

    for _, moment, restart, later in times.values():
        assert restart == again
        assert later - again == pytest.approx(moment)


async def test_events_after_a_start_make_no_new_wave(paused: Start) -> None:
    scheduler, times = paused(IDLE_REQUEUE_SECONDS)
    scheduler.resume()
    await asyncio.sleep(0.5)
    for name in NAMES:
        scheduler.wake("ns", name)
    await asyncio.sleep(IDLE_REQUEUE_SECONDS)

    woken = [[moment for moment in moments if moment >= 0.5] for moments in times.values()]
    assert {moments[0] for moments in woken} == {0.5}
    assert_spread([moments[1] for moments in woken], begin=0.5)


async def test_jobs_that_wait_for_something_keep_their_delay_after_a_start(paused: Start) -> None:
    scheduler, times = paused(5.0)
    scheduler.resume()
    await asyncio.sleep(6)

    assert {tuple(moments) for moments in times.values()} == {(0.0, 5.0)}


async def test_job_that_is_created_later_keeps_the_interval(paused: Start) -> None:
    scheduler, times = paused(IDLE_REQUEUE_SECONDS)
    scheduler.resume()
    await asyncio.sleep(10)
    scheduler.wake("ns", "new")
    await asyncio.sleep(IDLE_REQUEUE_SECONDS + 1)

    assert times["new"] == [10.0, 10.0 + IDLE_REQUEUE_SECONDS]
