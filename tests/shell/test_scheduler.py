"""A job is reconciled in time, never twice at once, and with backoff while that fails."""

import asyncio

import pytest

from trainingjob_operator.shell.check_pool import CheckBusyError
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.scheduler import MAX_BACKOFF_SECONDS, MIN_INTERVAL_SECONDS, Scheduler

pytestmark = pytest.mark.looptime


class Reconciler:
    """Takes a second a look and notes when each began; `answers` are returned or raised in turn, the last for ever."""

    def __init__(self, *answers: float | Exception | None, takes: float = 1.0) -> None:
        self.answers = list(answers)
        self.takes = takes
        self.begun: list[float] = []
        self.num_running = 0
        self.most_running = 0

    async def __call__(self, namespace: str, name: str) -> float | None:
        self.begun.append(now())
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(self.takes)
        self.num_running -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
async def running():
    """Return a function that starts a scheduler; all are stopped in the end."""
    started = []

    def start(reconciler: Reconciler, **options) -> Scheduler:
        started.append(Scheduler(reconciler, **options))
        started[-1].resume()
        return started[-1]

    yield start
    for scheduler in started:
        await scheduler.stop()


async def test_job_is_reconciled_again_after_the_requested_time(running) -> None:
    reconciler = Reconciler(10.0, 5.0, 100.0)
    running(reconciler).wake("ns", "a")

    await asyncio.sleep(50)

    assert reconciler.begun == [0.0, 11.0, 17.0]


async def test_a_wake_comes_before_the_time(running) -> None:
    reconciler = Reconciler(100.0)
    scheduler = running(reconciler)
    scheduler.wake("ns", "a")
    await asyncio.sleep(20)

    scheduler.wake("ns", "a")
    await asyncio.sleep(50)

    assert reconciler.begun == [0.0, 20.0]


async def test_a_burst_while_it_looks_is_one_more_look(running) -> None:
    reconciler = Reconciler(100.0)
    scheduler = running(reconciler)
    scheduler.wake("ns", "a")
    await asyncio.sleep(0.5)

    for _ in range(20):
        scheduler.wake("ns", "a")
    await asyncio.sleep(50)

    assert reconciler.begun == [0.0, pytest.approx(1.0 + MIN_INTERVAL_SECONDS)]
    assert reconciler.most_running == 1


async def test_jobs_beyond_the_workers_wait_in_the_queue(running) -> None:
    scheduler = running(Reconciler(100.0), num_workers=1)
    for name in ("a", "b", "c"):
        scheduler.wake("ns", name)
    await asyncio.sleep(0.5)
    assert scheduler.queue_length == 2

    await asyncio.sleep(1.0)
    assert scheduler.queue_length == 1
    await asyncio.sleep(3.0)
    assert scheduler.queue_length == 0


async def test_deleted_job_is_dropped(running) -> None:
    scheduler = running(reconciler := Reconciler(None))
    scheduler.wake("ns", "a")
    await asyncio.sleep(10)

    assert len(scheduler) == 0
    assert reconciler.begun == [0.0]


async def test_job_recreated_during_a_reconciliation_is_kept(running) -> None:
    scheduler = running(reconciler := Reconciler(None, 100.0))
    scheduler.wake("ns", "a")
    await asyncio.sleep(0.5)
    scheduler.wake("ns", "a")
    await asyncio.sleep(10)

    assert len(reconciler.begun) == 2
    assert len(scheduler) == 1


async def test_failures_are_tried_ever_more_rarely_even_when_woken(running) -> None:
    reconciler = Reconciler(ClusterUnavailableError("down"), takes=0.0)
    scheduler = running(reconciler)
    for _ in range(400):
        scheduler.wake("ns", "a")
        await asyncio.sleep(0.25)

    gaps = [later - earlier for earlier, later in zip(reconciler.begun, reconciler.begun[1:], strict=False)]
    assert gaps[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, MAX_BACKOFF_SECONDS]


async def test_scheduler_waits_for_the_requested_delay(running) -> None:
    reconciler = Reconciler(ClusterUnavailableError("busy", retry_after=40.0), 100.0, takes=0.0)
    running(reconciler).wake("ns", "a")
    await asyncio.sleep(90)

    assert reconciler.begun == [0.0, 40.0]


REFUSALS = [
    ForbiddenError("no right to delete pods"),
    MissingKindError("no JobSets"),
    CheckBusyError("the check of job 'a' did not end within 20 s"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
async def test_rejection_by_the_server_is_reported_and_retried(
    error: Exception, running, caplog: pytest.LogCaptureFixture
) -> None:
    reconciler = Reconciler(error, 100.0, takes=0.0)
    running(reconciler).wake("ns", "a")
    await asyncio.sleep(60)

    assert reconciler.begun == [0.0, 0.5]
    (reported,) = [record for record in caplog.records if record.name == "trainingjob.scheduler"]
    assert (reported.levelname, reported.exc_info, reported.fields["error"]) == ("WARNING", None, str(error))


async def test_success_forgets_the_failures(running) -> None:
    down = ClusterUnavailableError("down")
    reconciler = Reconciler(down, down, 10.0, down, 100.0, takes=0.0)
    running(reconciler).wake("ns", "a")
    await asyncio.sleep(60)

    assert reconciler.begun == [0.0, 0.5, 1.5, 11.5, 12.0]


async def test_an_unforeseen_error_stops_no_other_job(running, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Reconciler):
        async def __call__(self, namespace: str, name: str) -> float | None:
            if name == "broken":
                raise ZeroDivisionError
            return await super().__call__(namespace, name)

    measured = []
    scheduler = running(reconciler := Broken(10.0), measure=lambda seconds, failed: measured.append((seconds, failed)))
    scheduler.wake("ns", "broken")
    scheduler.wake("ns", "a")
    await asyncio.sleep(0.4)
    await asyncio.sleep(1)

    assert reconciler.begun == [0.0]
    assert "ZeroDivisionError" in caplog.text
    assert sorted(measured) == [(0.0, True), (0.0, True), (1.0, False)]


async def test_only_a_few_jobs_at_once(running) -> None:
    reconciler = Reconciler(100.0)
    scheduler = running(reconciler, num_workers=3)
    for number in range(10):
        scheduler.wake("ns", str(number))
    await asyncio.sleep(50)

    assert reconciler.most_running == 3
    assert len(reconciler.begun) == 10


async def test_paused_scheduler_starts_nothing_and_resumed_one_reconciles_all() -> None:
    reconciler = Reconciler(5.0)
    scheduler = Scheduler(reconciler)
    scheduler.wake("ns", "a")
    await asyncio.sleep(20)
    assert reconciler.begun == []

    scheduler.resume()
    await asyncio.sleep(3)
    scheduler.pause()
    await asyncio.sleep(17)
    assert reconciler.begun == [20.0]

    scheduler.resume()
    await asyncio.sleep(1)
    assert reconciler.begun == [20.0, 40.0]


async def test_running_reconciliation_ends_during_a_pause_and_stop_waits_for_it(running) -> None:
    reconciler = Reconciler(5.0)
    scheduler = running(reconciler)
    scheduler.wake("ns", "a")
    await asyncio.sleep(0.5)

    await scheduler.stop()

    assert now() == 1.0
    assert reconciler.num_running == 0
    await asyncio.sleep(60)
    assert reconciler.begun == [0.0]


async def begin_one_of_many(scheduler: Scheduler, num_jobs: int = 12) -> None:
    """Keep the only worker busy with the first of many jobs, while the others wait."""
    for number in range(num_jobs):
        scheduler.wake("ns", f"job-{number}")
    await asyncio.sleep(0.5)


async def test_a_pause_holds_back_looks_that_wait_for_a_worker(running) -> None:
    scheduler = running(reconciler := Reconciler(100.0), num_workers=1)
    await begin_one_of_many(scheduler)

    scheduler.pause()
    await asyncio.sleep(60)
    assert reconciler.begun == [0.0]

    scheduler.resume()
    await asyncio.sleep(30)
    assert len(reconciler.begun) == 13, "all jobs are due, the first one too"
    assert reconciler.most_running == 1


async def test_job_delayed_by_a_pause_is_reconciled_once(running) -> None:
    scheduler = running(reconciler := Reconciler(100.0), num_workers=1)
    await begin_one_of_many(scheduler)

    for _ in range(3):
        scheduler.pause()
        scheduler.wake("ns", "job-5")
        scheduler.resume()
    await asyncio.sleep(50)

    assert len(reconciler.begun) == 13
    assert reconciler.most_running == 1


async def test_stop_cancels_pending_reconciliations(running) -> None:
    scheduler = running(reconciler := Reconciler(100.0), num_workers=1)
    await begin_one_of_many(scheduler)

    await scheduler.stop()

    assert now() == 1.0, "it waits for the one look that has begun"
    assert reconciler.begun == [0.0]
    assert reconciler.num_running == 0


async def test_reconcile_without_an_event_is_postponed(running) -> None:
    delays = [3.0, 0.001, 0.0]
    reconciler = Reconciler(10.0, takes=0.0)
    scheduler = running(reconciler, postpone=lambda namespace, name: delays.pop(0) if delays else 0.0)
    scheduler.wake("ns", "a")
    await asyncio.sleep(20)
    assert reconciler.begun == [0.0, 10.0 + 3.0 + MIN_INTERVAL_SECONDS]

    delays[:] = [100.0] * 10
    await asyncio.sleep(10)
    scheduler.wake("ns", "a")
    await asyncio.sleep(1)

    assert reconciler.begun[2:] == [30.0], "an event is not postponed"


async def test_events_request_no_reconcile_of_a_large_job_within_its_interval(running) -> None:
    reconciler = Reconciler(10.0, takes=0.0)
    scheduler = running(reconciler, min_interval=lambda namespace, name: 0.5 if name == "large" else 0.0)
    for name in ("large", "small"):
        scheduler.wake("ns", name)
    await asyncio.sleep(0.1)
    for name in ("large", "small"):
        scheduler.wake("ns", name)
    await asyncio.sleep(1)

    assert reconciler.begun == [0.0, 0.0, 0.1, 0.5]


async def test_paused_scheduler_forgets_deleted_jobs_but_not_those_that_it_has_reconciled() -> None:
    existing, reconciled = {"live", "led"}, []

    async def reconcile(namespace: str, name: str) -> float | None:
        reconciled.append(name)
        return 500.0 if name in existing else None

    scheduler = Scheduler(reconcile, exists=lambda namespace, name: name in existing)
    scheduler.resume()
    scheduler.wake("ns", "led")
    await asyncio.sleep(1)
    scheduler.pause()
    for number in range(100):
        existing.add(f"sweep-{number}")
        scheduler.wake("ns", f"sweep-{number}")
        existing.remove(f"sweep-{number}")
        scheduler.wake("ns", f"sweep-{number}")
    existing.remove("led")
    for name in ("led", "live"):
        scheduler.wake("ns", name)
    assert len(scheduler) == 2

    scheduler.resume()
    await asyncio.sleep(1)
    assert sorted(reconciled) == ["led", "led", "live"], "the last reconcile of a deleted job drops its state"
    assert len(scheduler) == 1
    await scheduler.stop()
