"""Reports of the trainer: failures, events, learning rates."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_api.protocol import RECENT_STEPS, FailureReason, Phase, Progress
from trainingjob_api.spec.training import BatchSizes
from trainingjob_api.status.progress_status import EvaluationScores
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor
from trainingjob_trainer.monitoring.step_reporter import MIN_TYPICAL_STEPS, WINDOW_STEPS, StepReporter
from trainingjob_trainer.objectives.scoring import Scores
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.runtime.failure_records import failure_record
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import StepMetrics
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.trackers.metrics_file import TextOfPrompt

EXPLAINED: dict[str, tuple[BaseException, FailureReason, bool]] = {
    "a known cause": (
        TrainingError(FailureReason.DATA, "no text", path="spec.data.train[0].path"),
        FailureReason.DATA,
        True,
    ),
    "an unknown one": (RuntimeError("what is this"), FailureReason.CRASH, False),
    "no memory on the host": (MemoryError("no memory"), FailureReason.OUT_OF_MEMORY, False),
    "no memory on the device": (
        JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes"),
        FailureReason.OUT_OF_MEMORY,
        False,
    ),
    "a peer's end, told by gloo": (
        JaxRuntimeError("FAILED_PRECONDITION: Gloo all-reduce failed: Connection reset by peer"),
        FailureReason.PEER,
        False,
    ),
    "a peer's end, told by nccl": (
        JaxRuntimeError("INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited or network error"),
        FailureReason.PEER,
        False,
    ),
    "a peer's end, told by a collective that was aborted": (
        JaxRuntimeError("FAILED_PRECONDITION: Task with incarnation id 3446767950926952685 is not connected"),
        FailureReason.PEER,
        False,
    ),
    "a peer's end, told by a barrier": (
        JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: trainingjob/ready"),
        FailureReason.PEER,
        False,
    ),
    "a program that XLA refuses": (JaxRuntimeError("INVALID_ARGUMENT: bad shape"), FailureReason.CRASH, False),
    "a full disk": (storage_error(OSError(errno.ENOSPC, ""), "saving", "/x/y"), FailureReason.STORAGE, False),
    "a read-only disk": (storage_error(OSError(errno.EROFS, ""), "saving", "/x/y"), FailureReason.STORAGE, True),
}


@pytest.mark.parametrize(("error", "reason", "fatal"), EXPLAINED.values(), ids=EXPLAINED.keys())
def test_explain(error: BaseException, reason: FailureReason, fatal: bool) -> None:
    failure = failure_record(error, step=7)

    assert (failure.reason, failure.fatal, failure.step) == (reason, fatal, 7)
    assert type(error).__name__ in failure.log


def test_a_long_message_is_cut() -> None:
    assert len(failure_record(RuntimeError("x" * 5000), step=None).message) == 1024


def make_measures(loss: object = 2.5) -> StepMetrics:
    values = {"grad_norm": 1.0, "learning_rate": 0.1, "non_finite": 0, "skipped": 0, "signals": 0}
    held: Any = loss if isinstance(loss, Clock) else jnp.asarray(loss)
    return StepMetrics(held, **{name: jnp.asarray(value) for name, value in values.items()}, objective={})


def read_sent(root: Path) -> list[AgentEvent]:
    return [AgentEvent.model_validate_json(line) for line in (root / "events").read_text().splitlines()]


@contextmanager
def reporting(
    root: Path,
    process: int = 1,
    restored: int = 0,
    snapshots: Snapshots | None = None,
    stalls: SchedulingDelayMonitor | None = None,
    sizes: BatchSizes | None = None,
) -> Iterator[tuple[StepReporter, list[AgentEvent]]]:
    """Give a reporter, and the events that it has sent once the context is over."""
    spec = make_spec(root, root, metrics__tensorboard=False)
    start = StartWorld(config=make_config(spec), world=make_world(1, 2), process=process)
    events: list[AgentEvent] = []
    with (
        (root / "events").open("wb", buffering=0) as file,
        StepReporter(
            start,
            AgentEvents(file.fileno()),
            open_store(root),
            restored=restored,
            snapshots=snapshots,
            stalls=stalls,
            sizes=sizes,
        ) as reporter,
    ):
        yield reporter, events
    events.extend(read_sent(root))


def test_events_are_lines_and_each_phase_is_reported_once(tmp_path: Path) -> None:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        events = AgentEvents(file.fileno())
        for phase in (Phase.TRAINING, Phase.TRAINING, Phase.SAVING, Phase.TRAINING):
            events.enter_phase(phase)
        events.send(AgentEvent(progress=Progress(step=3, loss=1.5)))

    lines = read_sent(tmp_path)
    assert [line.phase for line in lines[:3]] == [Phase.TRAINING, Phase.SAVING, Phase.TRAINING]
    assert lines[3].progress == Progress(step=3, loss=1.5)
    assert events.step == 3


def test_dropped_steps_add_up_and_stay_in_later_reports(tmp_path: Path) -> None:
    with reporting(tmp_path) as (reporter, events):
        reporter.report_dropped(4)
        reporter.report(1, make_measures())
        reporter.report_dropped(3)
        reporter.report(2, make_measures())

    assert [event.progress.dropped_steps for event in events if event.progress] == [4, 7, 7]


def test_evaluation_losses_of_the_last_step_are_reported(tmp_path: Path) -> None:
    with reporting(tmp_path, restored=5) as (reporter, events):
        reporter.report(6, make_measures())
        reporter.report_evaluations(
            6, {"held": Scores(1.25, 0.5, 2.0), "empty": Scores(float("nan"), float("nan"), None)}
        )

    reported = [event.progress for event in events if event.progress]
    assert [one.evaluations for one in reported] == [{}, {"held": 1.25}]
    assert reported[1].scores == {"held": EvaluationScores(accuracy=0.5, bits_per_byte=2.0)}
    assert reported[1].model_copy(update={"evaluations": {}, "scores": {}}) == reported[0]


def test_texts_of_samples_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reporting(tmp_path, restored=5) as (reporter, _), caplog.at_level("INFO"):
        reporter.report_samples(6, [TextOfPrompt("held", 0, "Once", " upon\ttime", 2, None)])

    assert "sampled step=6 evaluation=held prompt='Once' text=' upon\\ttime'" in caplog.messages


def test_phases_are_reported_at_their_start_and_step_times_after_some_steps(tmp_path: Path) -> None:
    with reporting(tmp_path) as (reporter, events):
        for step in range(1, MIN_TYPICAL_STEPS + 1):
            reporter.report_entry(f"step {step}")
            reporter.report(step, make_measures())

    assert [event.entered for event in events[::2]] == [f"step {step}" for step in range(1, MIN_TYPICAL_STEPS + 1)]
    steps = [event.progress for event in events if event.progress]
    assert [one.typical_seconds for one in steps[:-1]] == [None] * (MIN_TYPICAL_STEPS - 1)
    assert steps[-1].typical_seconds == median(one.step_seconds for one in steps if one.step_seconds)


def test_speed_and_typical_time_are_those_of_the_batch_size(tmp_path: Path) -> None:
    change = MIN_TYPICAL_STEPS + 2
    with reporting(tmp_path, sizes=((1, 4), (change, 12))) as (reporter, events):
        for step in range(1, change + MIN_TYPICAL_STEPS):
            reporter.report(step, make_measures())

    steps = [event.progress for event in events if event.progress]
    tokens = [round((one.tokens_per_second or 0) * (one.step_seconds or 0)) for one in steps]
    assert tokens == [4 * 16] * (change - 1) + [12 * 16] * MIN_TYPICAL_STEPS
    known = [one.typical_seconds is not None for one in steps]
    assert known[change - 2 :] == [True, *[False] * (MIN_TYPICAL_STEPS - 1), True]


def test_a_loss_that_is_not_finite_at_every_second_step_ends_training(tmp_path: Path) -> None:
    def skip() -> None:
        for step in range(1, RECENT_STEPS + 1):
            reporter.report(step, make_measures()._replace(non_finite=jnp.asarray(step % 2)))

    with (
        reporting(tmp_path) as (reporter, events),
        pytest.raises(TrainingError, match="26 of the newest 100"),
    ):
        skip()

    assert [event.progress.skipped_lately for event in events if event.progress][:4] == [1, 1, 2, 2]
    newest = events[-1].progress
    assert newest
    assert newest.step == 51


def test_updates_skipped_long_ago_are_not_reported(tmp_path: Path) -> None:
    with reporting(tmp_path) as (reporter, events):
        for step in range(1, RECENT_STEPS + 3):
            reporter.report(step, make_measures()._replace(non_finite=jnp.asarray(int(step in (1, 9)))))

    lately = [event.progress.skipped_lately for event in events if event.progress]
    assert (lately[8], lately[RECENT_STEPS - 1], lately[-1]) == (2, 2, 1)


def test_batches_without_a_loss_are_reported_and_end_no_job(tmp_path: Path) -> None:
    """All weights of an objective may be 0 by mistake: the job would succeed without a trained step or a warning."""
    with reporting(tmp_path) as (reporter, events):
        for _ in range(40):
            reporter.report(1, make_measures()._replace(loss=jnp.asarray(jnp.nan), non_finite=jnp.asarray(0)))
        reporter.report(1, make_measures()._replace(loss=jnp.asarray(jnp.nan), non_finite=jnp.asarray(1)))

    lately = [event.progress.skipped_lately for event in events if event.progress]
    assert (lately[0], lately[-2:]) == (1, [40, 41])


def test_a_loss_without_a_gradient_is_reported_and_ends_no_job(tmp_path: Path) -> None:
    """A loss of the user may compute what the parameters do not change."""
    with reporting(tmp_path) as (reporter, events):
        reporter.report(1, make_measures())
        for _ in range(40):
            reporter.report(2, make_measures()._replace(grad_norm=jnp.asarray(0.0)))

    lately = [event.progress.skipped_lately for event in events if event.progress]
    assert (lately[0], lately[-1]) == (0, 40)


def test_snapshots_are_reported_from_the_first_one(tmp_path: Path) -> None:
    measures = make_measures()
    described = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), leaf.dtype, sharding=leaf.sharding), [measures.loss])
    snapshots: Any = Snapshots("", 5, make_world(1, 2), "index", described, Shards(described))  # type: ignore[arg-type]
    with reporting(tmp_path, process=0, snapshots=snapshots) as (reporter, events):
        reporter.report(1, measures)
        snapshots.newest, snapshots.seconds = 5, 0.25
        reporter.report(6, measures)

    reported = [event.progress for event in events if event.progress]
    assert [(one.snapshot, one.snapshot_seconds) for one in reported] == [(None, None), (5, 0.25)]
    written = read_lines(tmp_path)
    assert [line.get("snapshot_seconds") for line in written] == [None, 0.25]
    assert "snapshot" not in written[0]


class Clock:
    """A clock that a test advances, and a loss that takes some time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wait = 0.0

    def monotonic(self) -> float:
        return self.now

    def __float__(self) -> float:
        self.now += self.wait
        return 2.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("trainingjob_trainer.monitoring.step_reporter.time", made)
    return made


def test_seconds_blocked_by_a_save_are_reported_from_then_on(tmp_path: Path, clock: Clock) -> None:
    with reporting(tmp_path, process=0) as (reporter, events):
        for step, seconds in ((1, 0.25), (2, 0.5)):
            reporter.enter_phase(Phase.TRAINING)
            clock.now += 3.0
            reporter.report(step, make_measures(clock))
            reporter.enter_phase(Phase.SAVING)
            clock.now += seconds
        reporter.enter_phase(Phase.TRAINING)
        for step in (3, 4):
            reporter.report(step, make_measures(clock))

    reported = [event.progress for event in events if event.progress]
    assert [one.save_seconds for one in reported] == [None, 0.25, 0.5, 0.5]
    assert [line.get("save_seconds", "absent") for line in read_lines(tmp_path)] == ["absent", 0.25, 0.5, 0.5]


def test_wait_times_are_reported_after_many_steps(tmp_path: Path, clock: Clock) -> None:
    with reporting(tmp_path) as (reporter, events):
        for step in range(1, WINDOW_STEPS + 2):
            clock.now += 0.5
            clock.wait = 0.25 if step < WINDOW_STEPS // 2 else 2.0
            reporter.report(step, make_measures(clock))

    reported = [event.progress for event in events if event.progress]
    assert [one.wait_seconds for one in reported] == [None] * (WINDOW_STEPS - 1) + [2.0, 2.0]
    assert reported[-1].typical_seconds == 2.5


def test_load_times_are_reported_after_many_steps(tmp_path: Path, clock: Clock) -> None:
    with reporting(tmp_path) as (reporter, events):
        for step in range(1, WINDOW_STEPS + 3):
            with reporter.loading_batch():
                clock.now += 0.125 if step < WINDOW_STEPS // 2 else 0.25
            reporter.report(step, make_measures(clock))

    reported = [event.progress for event in events if event.progress]
    assert [one.load_seconds for one in reported] == [None] * WINDOW_STEPS + [0.25, 0.25]


def test_scheduling_delay_is_reported_with_each_step(tmp_path: Path) -> None:
    stalls: Any = SimpleNamespace(delayed_share=None)
    with reporting(tmp_path, stalls=stalls) as (reporter, events):
        reporter.report(1, make_measures())
        stalls.delayed_share = 0.25
        reporter.report(2, make_measures())

    assert [event.progress.stalled_share for event in events if event.progress] == [None, 0.25]


def test_routing_metrics_are_reported_and_written(tmp_path: Path) -> None:
    dense = make_measures()
    with reporting(tmp_path, process=0) as (reporter, events):
        reporter.report(1, dense)
        reporter.report(2, dense._replace(objective={"load_balance": jnp.asarray(1.5), "dropped": jnp.asarray(0.25)}))

    reported = [event.progress for event in events if event.progress]
    assert [(one.load_balance, one.dropped) for one in reported] == [(None, None), (1.5, 0.25)]
    first, second = read_lines(tmp_path)
    assert {"load_balance", "dropped"} & first.keys() == set()
    assert (second["load_balance"], second["dropped"]) == (1.5, 0.25)


@pytest.mark.parametrize("environment", [{}, {"TRAININGJOB_EVENTS_FD": "-1"}, {"TRAININGJOB_EVENTS_FD": "\u00b2"}])
def test_program_started_without_an_agent_is_reported(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="TRAININGJOB_EVENTS_FD must be the number of an open file"):
        AgentEvents.from_environment(environment)


def read_lines(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / "metrics/metrics.jsonl").read_text().splitlines()]
