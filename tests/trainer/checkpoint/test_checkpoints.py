"""Saving and restoring over meshes, keeping and deleting."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.shelf import at, list_steps, read_record, record, step_path
from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.checkpoints import FINAL_RETRY_SECONDS, Checkpoints
from trainingjob_trainer.checkpoint.manifest import Integrity, write_integrity
from trainingjob_trainer.checkpoint.policy import RETRY_SECONDS
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import Signal, State

FROZEN: dict[str, Any] = {"optimizer__trainable": ["*norm*"]}
"""Changes of a job whose state has a frozen tensor, `embedding`."""

type Opened = Callable[..., Checkpoints]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


@pytest.fixture
def opened(tmp_path: Path, events: AgentEvents) -> Opened:
    """Return a function that opens the checkpoints of a generation."""

    def open_checkpoints(generation: int = 1, *lineage: Span, **changes: Any) -> Checkpoints:
        config = make_config(make_spec(tmp_path, tmp_path, **changes))
        return Checkpoints(tmp_path, config, make_world(generation, 1, lineage), ProcessGroup(0, 1), "index", events)

    return open_checkpoints


def committed(tmp_path: Path) -> list[int | None]:
    lines = (tmp_path / "events").read_text().splitlines()
    return [event.committed for event in map(AgentEvent.model_validate_json, lines) if event.committed]


def make_state(shape: tuple[int, int], step: int = 0, *, frozen: bool = False) -> State:
    """Return a state whose matrices are sharded both ways over a mesh of this shape, if asked with a frozen one."""
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("a", "b"))

    def place(value: np.ndarray, *spec: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))

    matrix = np.arange(64, dtype=np.float32).reshape(8, 8) + step
    scalar = np.array(step, np.int32)
    params = {"w": place(matrix, "a", "b")}
    if frozen:
        params["embedding"] = place(np.arange(4096, dtype=np.float32).reshape(64, 64), "b", "a")
    return State(place(scalar), params, {"m": place(-matrix, "b")}, place(scalar), place(scalar))


def describe(state: State) -> State:
    tree: State = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    return tree


def test_a_state_is_restored_onto_another_mesh(opened: Opened, tmp_path: Path) -> None:
    saving = opened()
    saving.save(7, make_state((4, 2), step=7))
    saving.wait()
    target = make_state((1, 2))

    restored = opened(2).restore(describe(target))

    assert restored is not None
    for seen, want, place in zip(*map(jax.tree.leaves, (restored, make_state((4, 2), 7), target)), strict=True):
        assert np.array_equal(seen, want)
        assert seen.sharding == place.sharding
    assert committed(tmp_path) == [7]


def test_training_waits_for_no_compiler_where_a_small_state_is_saved(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints, state = opened(), make_state((4, 2))
    jax.clear_caches()

    with jax.log_compiles():
        checkpoints.save(7, state)
        checkpoints.wait()

    assert checkpoints.newest == 7
    assert "compil" not in caplog.text.lower()


def test_nothing_saved_is_nothing_restored(opened: Opened) -> None:
    checkpoints = opened()

    assert checkpoints.restore(describe(make_state((1, 1)))) is None
    assert checkpoints.newest == 0


def test_step_saved_by_an_ended_generation_is_written_again(opened: Opened, tmp_path: Path) -> None:
    first = opened(1)
    for step in (2, 4):
        first.save(step, make_state((1, 1), step))
        first.wait()
    second = opened(2, Span(generation=1, first=1, last=2), checkpoint__save__everySteps=2)
    second.restore(describe(make_state((1, 1))))

    second.save(4, make_state((1, 1), step=40))
    second.wait()

    restored = opened(3, Span(generation=1, first=1, last=2), Span(generation=2, first=3)).restore(
        describe(make_state((1, 1)))
    )
    assert restored is not None
    assert int(restored.step) == 40


def test_a_state_of_another_model_is_a_config_failure(opened: Opened) -> None:
    saving = opened()
    saving.save(1, make_state((1, 1)))
    saving.wait()
    target = describe(make_state((1, 1)))
    wide = jax.ShapeDtypeStruct((8, 16), np.float32, sharding=target.params["w"].sharding)

    with pytest.raises(TrainingError, match="step 1 holds the state of another model") as shapes:
        opened(2).restore(target._replace(params={"w": wide}))
    with pytest.raises(TrainingError, match=r"that of step 1, .*: rope\.theta was unset, not 77\.0\. W") as function:
        opened(2, model__rope={"theta": 77.0}).restore(target)

    for caught in (shapes, function):
        assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, "spec.model")


def fail_once(monkeypatch: pytest.MonkeyPatch, *codes: int) -> None:
    """Fail the writes of records with these errors, one after the other."""
    left = list(codes)

    def write(folder: StepFolder, record: Integrity) -> None:
        if left:
            raise OSError(left.pop(0), "")
        write_integrity(folder, record)

    monkeypatch.setattr("trainingjob_trainer.checkpoint.commit.write_integrity", write)


def failed(tmp_path: Path) -> list[tuple[int, str]]:
    lines = (tmp_path / "events").read_text().splitlines()
    reported = [event.failed_save for event in map(AgentEvent.model_validate_json, lines) if event.failed_save]
    return [(one.step, one.message) for one in reported]


def test_failed_save_is_reported_and_blocks_nothing(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, errno.ENOSPC)
    checkpoints = opened()

    checkpoints.save(2, make_state((1, 1)))
    checkpoints.wait()
    assert (checkpoints.is_failing, checkpoints.newest) == (True, 0)
    assert failed(tmp_path) == [(2, "host 0 of slice 0: No space left on device")]
    assert list((tmp_path / "lineage-0").iterdir()) == [], "what fills the disk is gone"

    checkpoints.save(4, make_state((1, 1)))
    checkpoints.wait()
    assert (checkpoints.is_failing, checkpoints.newest) == (False, 4)
    assert committed(tmp_path) == [4]


def test_a_folder_that_takes_nothing_stops_nothing(opened: Opened, tmp_path: Path) -> None:
    checkpoints = opened()
    (tmp_path / "lineage-0").touch()

    checkpoints.save(2, make_state((1, 1)))
    checkpoints.wait()

    assert checkpoints.is_failing
    assert failed(tmp_path) == [(2, "host 0 of slice 0: Not a directory")]


def test_the_last_step_is_tried_until_it_is_saved(
    opened: Opened, tmp_path: Path, clock: "Clock", monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, errno.ENOSPC, errno.EIO, errno.ESTALE)
    checkpoints = opened()
    state = make_state((1, 1), step=6)
    checkpoints.save(6, state, {"news": 2.5})

    checkpoints.save_until_success(6, state)

    assert (checkpoints.newest, committed(tmp_path)) == (6, [6])
    assert read_record(step_path(tmp_path, 6)).evaluations == {"news": 2.5}
    assert [message.partition(": ")[2] for _, message in failed(tmp_path)] == [
        "No space left on device",
        "Input/output error",
        "Stale file handle",
    ]
    assert clock.slept == [FINAL_RETRY_SECONDS] * 3


def test_failed_save_is_soon_requested_again(opened: Opened, clock: "Clock", monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, errno.ENOSPC)
    checkpoints = opened(checkpoint__save__every="10m")
    checkpoints.save(2, make_state((1, 1)))
    checkpoints.wait()

    clock.now += RETRY_SECONDS - 1
    assert checkpoints.save_signal() is Signal.NONE
    clock.now += 1
    assert checkpoints.save_signal() is Signal.SAVE

    checkpoints.save(3, make_state((1, 1)))
    checkpoints.wait()
    clock.now += RETRY_SECONDS
    assert checkpoints.save_signal() is Signal.NONE


def test_an_old_step_that_cannot_be_deleted_stops_nothing(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr("trainingjob_trainer.checkpoint.retention.delete_step", refuse)
    checkpoints = opened(checkpoint__keep__last=1)
    for step in (1, 2):
        checkpoints.save(step, make_state((1, 1), step))
        checkpoints.wait()

    assert (checkpoints.is_failing, committed(tmp_path)) == (False, [1, 2])


def test_a_step_that_was_set_aside_is_deleted_once_all_that_are_kept_are_newer(opened: Opened, tmp_path: Path) -> None:
    folder = tmp_path / "lineage-0"
    checkpoints = opened(checkpoint__keep__last=2)
    for step in (3, 5):
        (folder / f"{step}.damaged-1").mkdir(parents=True)
        write_integrity(at(folder / f"{step}.damaged-1"), record(1, step))
    for step in (2, 4):
        checkpoints.save(step, make_state((1, 1), step))
        checkpoints.wait()
    assert list_steps(folder) == ["2", "3.damaged-1", "4", "5.damaged-1"]

    checkpoints.save(6, make_state((1, 1), 6))
    checkpoints.wait()

    assert list_steps(folder) == ["4", "5.damaged-1", "6"]


def test_a_step_that_is_there_already_is_not_passed_over(opened: Opened, tmp_path: Path) -> None:
    checkpoints = opened()
    for _ in range(2):
        checkpoints.save(2, make_state((1, 1)))
        checkpoints.wait()

    assert failed(tmp_path) == [(2, "host 0 of slice 0: step 2 is there already")]
    assert opened(2).restore(describe(make_state((1, 1)))) is not None


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trainingjob_trainer.checkpoint.checkpoints.time", clock)
    return clock


def test_due_save_is_requested_once(opened: Opened, clock: Clock) -> None:
    checkpoints = opened(checkpoint__save__every="1m")
    clock.now += 59.0
    assert checkpoints.save_signal() is Signal.NONE

    clock.now += 1.0
    assert [checkpoints.save_signal() for _ in range(3)] == [Signal.SAVE, Signal.NONE, Signal.NONE]
    checkpoints.save(7, make_state((1, 1)))
    checkpoints.wait()

    clock.now += 59.0
    assert checkpoints.save_signal() is Signal.NONE
    clock.now += 1.0
    assert checkpoints.save_signal() is Signal.SAVE


def test_no_save_is_requested_during_another(opened: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    def write_late(folder: StepFolder, record: Integrity) -> None:
        assert written.wait(ENDLESS_SECONDS)
        write_integrity(folder, record)

    monkeypatch.setattr("trainingjob_trainer.checkpoint.commit.write_integrity", write_late)
    checkpoints = opened(checkpoint__save__every="1m")
    checkpoints.save(7, make_state((1, 1)))
    clock.now += 600.0
    assert checkpoints.save_signal() is Signal.NONE

    written.set()
    checkpoints.wait()

    assert checkpoints.save_signal() is Signal.SAVE


def test_one_process_requests_a_save_for_all(tmp_path: Path, events: AgentEvents, clock: Clock) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, checkpoint__save__every="1m"))
    opened = [Checkpoints(tmp_path, config, make_world(1, 2), ProcessGroup(one, 1), "index", events) for one in (0, 1)]
    clock.now += 60.0

    assert [checkpoints.save_signal() for checkpoints in opened] == [Signal.SAVE, Signal.NONE]


def test_saves_by_steps_need_no_exchange(opened: Opened, clock: Clock) -> None:
    checkpoints = opened()
    clock.now += 1e6

    assert checkpoints.save_signal() is Signal.NONE


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_step_that_is_one_of_the_best_is_saved_and_stays_in_the_next_world_too(
    opened: Opened, tmp_path: Path
) -> None:
    keep = {"checkpoint__keep__last": 1, "checkpoint__keep__best": {"evaluation": "news", "count": 2}}
    state = make_state((1, 1))
    first = opened(**keep)
    assert first.restore(describe(state)) is None
    saved = []
    for step, loss in ((1, 3.0), (2, 2.0), (3, 4.0), (4, 2.5), (5, 2.5), (6, float("nan"))):
        if first.is_best({"news": loss, "code": 0.0}):
            saved.append(step)
            first.save(step, state, {"news": loss})
            first.wait()
    assert saved == [1, 2, 4]

    second = opened(2, Span(generation=1, first=1), **keep)
    second.restore(describe(state))
    assert not second.is_best({"news": 2.5})
    assert not second.is_best({})
    assert second.is_best({"news": 2.4})
    second.save(7, state, {"news": 2.4})
    second.wait()
    second.save(8, state, {"news": 9.0})
    second.wait()

    # 4 was what the second world went on from
    assert list_steps(tmp_path / "lineage-0") == ["2", "4", "7", "8"]
    assert read_record(step_path(tmp_path, 7)).evaluations == {"news": 2.4}


def test_unsaved_step_is_not_among_the_best(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = opened(checkpoint__keep__best={"evaluation": "news"})
    checkpoints.restore(describe(make_state((1, 1))))
    with monkeypatch.context() as broken:
        broken.setattr("trainingjob_trainer.checkpoint.commit.write_integrity", refuse)
        checkpoints.save(1, make_state((1, 1)), {"news": 1.0})
        assert not checkpoints.is_best({"news": 2.0})
        checkpoints.wait()

    assert checkpoints.is_best({"news": 2.0})


def test_old_steps_are_deleted_only_after_the_new_one_is_proven(opened: Opened, tmp_path: Path) -> None:
    checkpoints = opened(checkpoint__keep__last=1)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state((1, 1), step))
        checkpoints.wait()

    assert list_steps(tmp_path / "lineage-0") == ["3"]
    assert committed(tmp_path) == [1, 2, 3]
