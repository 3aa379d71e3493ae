"""Drills of an agent: each is injected once, for real, and only if the job allows it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.trainer.scripts import HOST, ONE, TRAINING, TWO, leave, phase, play, ready, train
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_agent.fault_injection import inject_fault, slow_down
from trainingjob_agent.host import handle_message
from trainingjob_agent.state import Action, AnswerReceived, DrillReported, InjectFault, KillChild, State
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Answer, Directive, Phase

DRILL = Drill(id="one", kind=DrillKind.HANG)
ALLOWED = replace(HOST, drills_allowed=True)


def told(drill: Drill, generation: int = 1) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.TRAIN, world=ONE if generation == 1 else TWO, drill=drill))


def actions(state: State, *drills: Drill) -> list[Action]:
    """Return the actions for a sequence of answers with drills."""
    done: list[Action] = []
    for drill in drills:
        step = handle_message(ALLOWED, state, told(drill), 9.0)
        state, done = step.state, [*done, *step.actions]
    return done


def test_repeated_request_injects_a_drill_once() -> None:
    other = Drill(id="two", kind=DrillKind.SLOW)

    assert actions(play(TRAINING), DRILL, DRILL, other, other) == [InjectFault(1, DRILL), InjectFault(1, other)]


def test_a_job_that_does_not_allow_it_is_not_struck() -> None:
    step = handle_message(HOST, play(TRAINING), told(DRILL), 9.0)

    assert (step.actions, step.state.started_drill) == ((), "")


def test_only_a_trainer_that_trains_is_struck() -> None:
    saving = play([*TRAINING, (9, phase(1, Phase.SAVING), [])])

    assert actions(saving, DRILL) == []


def test_a_world_that_is_over_is_not_struck() -> None:
    step = handle_message(ALLOWED, play(TRAINING), told(DRILL, generation=2), 9.0)

    assert step.actions == (KillChild(1),)


def test_withdrawn_drill_is_not_injected() -> None:
    state = handle_message(ALLOWED, play([*TRAINING, (9, phase(1, Phase.SAVING), [])]), told(DRILL), 9.0).state
    state = handle_message(ALLOWED, state, train(ONE), 10.0).state

    assert handle_message(ALLOWED, state, phase(1, Phase.TRAINING), 11.0).actions == ()
    assert handle_message(ALLOWED, state, leave(ONE), 12.0).state.drill is None
    assert handle_message(ALLOWED, state, ready(2), 12.0).actions == ()


def test_host_reports_injected_and_failed_drills() -> None:
    state = handle_message(
        ALLOWED, handle_message(ALLOWED, play(TRAINING), told(DRILL), 9.0).state, DrillReported("one"), 9.1
    ).state
    assert (state.reported_drill, state.drill_error) == ("one", "")

    state = handle_message(ALLOWED, state, DrillReported("two", "nothing is saved"), 9.2).state

    assert (state.reported_drill, state.drill_error) == ("two", "nothing is saved")


class FakeChild:
    """Records its signals, and ends after a number of stops."""

    def __init__(self, stops: int = 1000) -> None:
        self.done: list[str] = []
        self._stops = stops

    @property
    def is_alive(self) -> bool:
        return self.done.count("pause") < self._stops

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def kill(self) -> None:
        self.done.append("kill")

    def inject_nan(self) -> None:
        self.done.append("inject_nan")


class FakeReporter:
    silence = 0.0

    def suspend(self, seconds: float) -> None:
        self.silence = seconds


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("kind", "done", "silence"),
    [
        (DrillKind.HANG, ["pause", "told"], 0.0),
        (DrillKind.CORRUPT_CHECKPOINT, ["pause", "told", "kill"], 0.0),
        (DrillKind.NAN, ["inject_nan", "told"], 0.0),
        (DrillKind.PARTITION, ["told"], 7.0),
    ],
)
async def test_each_fault_is_injected(kind: DrillKind, done: list[str], silence: float, tmp_path: Path) -> None:
    child, reporter, drill = FakeChild(), FakeReporter(), Drill(id="one", kind=kind, seconds=7)
    for step in (10, 20):
        (tmp_path / f"lineage-0/{step}").mkdir(parents=True)
        for name in ("state", MANIFEST_FILE):
            (tmp_path / f"lineage-0/{step}" / name).write_text("{}")

    def tell(struck: DrillReported) -> None:
        assert struck == DrillReported("one")
        child.done.append("told")

    await inject_fault(drill, child, reporter, str(tmp_path), tell)  # type: ignore[arg-type]

    assert (child.done, reporter.silence) == (done, silence)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("kind", "errors", "done"),
    [
        (DrillKind.KILL_SLICE, ["the operator injects this drill, not a host"], []),
        (
            DrillKind.CORRUPT_CHECKPOINT,
            ["", "0 saved steps: at least 2 are needed, so that an intact one remains"],
            ["pause", "resume"],
        ),
    ],
)
async def test_failed_injection_is_reported_and_harms_no_process(
    kind: DrillKind, errors: list[str], done: list[str], tmp_path: Path
) -> None:
    child, reporter = FakeChild(), FakeReporter()
    received: list[DrillReported] = []

    await inject_fault(Drill(id="one", kind=kind), child, reporter, str(tmp_path), received.append)  # type: ignore[arg-type]

    assert received == [DrillReported("one", error) for error in errors]
    assert (child.done, reporter.silence) == (done, 0.0)


@pytest.mark.looptime
async def test_slow_drill_stops_and_continues_the_trainer_until_its_end() -> None:
    child = FakeChild()

    drill = Drill(id="one", kind=DrillKind.SLOW, seconds=2)
    await inject_fault(drill, child, FakeReporter(), "", lambda struck: None)  # type: ignore[arg-type]

    assert child.done == ["pause", "resume"] * 8
    assert asyncio.get_running_loop().time() >= 2


@pytest.mark.looptime
async def test_a_slow_trainer_that_ends_is_left_alone() -> None:
    child = FakeChild(stops=3)

    await slow_down(child, 1000)  # type: ignore[arg-type]

    assert child.done.count("pause") == 3
