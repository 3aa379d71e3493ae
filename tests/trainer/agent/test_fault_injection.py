"""Drills of an agent: each is injected once, for real, and only if the job allows it."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.trainer.scripts import HOST, ONE, TRAINING, TWO, leave, phase, play, ready, train
from tests.support.trainer.shelf import at
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE, QUARANTINE_SUFFIX
from trainingjob_agent.fault_injection import corrupt_newest_checkpoint, inject_fault, slow_down
from trainingjob_agent.host import handle_message
from trainingjob_agent.state import Action, AnswerReceived, DrillReported, InjectFault, KillChild, State
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Answer, Directive, Phase
from trainingjob_trainer.checkpoint.manifest import FileHash, find_damage, hash_files, list_files

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
async def test_each_fault_is_injected(kind: DrillKind, done: list[str], silence: float, saved: Path) -> None:
    child, reporter, drill = FakeChild(), FakeReporter(), Drill(id="one", kind=kind, seconds=7)

    def tell(struck: DrillReported) -> None:
        assert struck == DrillReported("one")
        child.done.append("told")

    await inject_fault(drill, child, reporter, saved, tell)  # type: ignore[arg-type]

    assert (child.done, reporter.silence) == (done, silence)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("kind", "why", "done"),
    [
        (DrillKind.KILL_SLICE, "the operator injects this drill, not a host", []),
        (
            DrillKind.CORRUPT_CHECKPOINT,
            "0 saved steps: at least 2 are needed, so that an intact one remains",
            ["pause", "resume"],
        ),
    ],
)
async def test_failed_injection_is_reported_and_harms_no_process(
    kind: DrillKind, why: str, done: list[str], tmp_path: Path
) -> None:
    child, reporter = FakeChild(), FakeReporter()
    received: list[DrillReported] = []

    await inject_fault(Drill(id="one", kind=kind), child, reporter, tmp_path, received.append)  # type: ignore[arg-type]

    assert received == [DrillReported("one", why)]
    assert (child.done, reporter.silence) == (done, 0.0)


@pytest.mark.looptime
async def test_slow_drill_stops_and_continues_the_trainer_until_its_end() -> None:
    child = FakeChild()

    drill = Drill(id="one", kind=DrillKind.SLOW, seconds=2)
    await inject_fault(drill, child, FakeReporter(), Path(), lambda struck: None)  # type: ignore[arg-type]

    assert child.done == ["pause", "resume"] * 8
    assert asyncio.get_running_loop().time() >= 2


@pytest.mark.looptime
async def test_a_slow_trainer_that_ends_is_left_alone() -> None:
    child = FakeChild(stops=3)

    await slow_down(child, 1000)  # type: ignore[arg-type]

    assert child.done.count("pause") == 3


OLDER = ("lineage-0/30.g1.s1.01234567", "lineage-1/9", "lineage-1/20.g2.s1.01234567")
"""Steps, one of them from an older trainer, and one of an earlier generation than the newest."""
NEWEST = "lineage-1/20.g10.s1.01234567"
QUARANTINED = "lineage-1/40.g2.s1.01234567"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder of saved steps; the newest is `NEWEST`. Digits of other alphabets name none."""
    others = (QUARANTINED, "lineage-1/20.damaged-3", "lineage-1/\u00b2", "lineage-\u0663/7")
    for name in (*OLDER, NEWEST, *others):
        folder = tmp_path / name / "state"
        folder.mkdir(parents=True)
        (folder / "large").write_bytes(bytes(1000))
        (folder / "small").write_bytes(b"abc")
        (folder.parent / MANIFEST_FILE).write_text("{}")
    (tmp_path / "lineage-1/25.g2.s1.01234567").mkdir()  # was never finished
    (tmp_path / (QUARANTINED + QUARANTINE_SUFFIX)).touch()
    return tmp_path


def prints(saved: Path) -> dict[str, dict[str, FileHash]]:
    folders = [path.parent for path in saved.glob(f"lineage-*/*/{MANIFEST_FILE}")]
    return {str(folder.relative_to(saved)): hash_files(at(folder), list_files(at(folder))) for folder in folders}


def test_the_newest_saved_step_is_damaged_and_no_other(saved: Path) -> None:
    before = prints(saved)

    assert corrupt_newest_checkpoint(saved) == ""

    damages = {name: find_damage(at(saved / name), wanted) for name, wanted in before.items()}
    assert {name: damage for name, damage in damages.items() if damage} == {
        NEWEST: "state/large has changed since it was saved"
    }


def test_the_only_saved_step_is_not_damaged(saved: Path) -> None:
    for name in OLDER:
        shutil.rmtree(saved / name)
    before = prints(saved)

    assert corrupt_newest_checkpoint(saved) == "1 saved steps: at least 2 are needed, so that an intact one remains"
    assert prints(saved) == before


def test_a_saved_step_that_goes_meanwhile_is_not_damaged(saved: Path) -> None:
    shutil.rmtree(saved / NEWEST / "state")

    assert corrupt_newest_checkpoint(saved) == f"the saved step has no files in {saved}/{NEWEST}"


def test_unwritable_store_is_reported(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)

    assert corrupt_newest_checkpoint(saved) == "the saved step cannot be damaged: Read-only file system"
