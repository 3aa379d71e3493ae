"""Saving and restoring over meshes, keeping and deleting."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.trainer.tiny import make_config, make_spec, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_api.running import Keep
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoints import Checkpoints, choose_deletions
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.step import State
from trainingjob_trainer.wire import Event
from trainingjob_trainer.world import Peers

type Opened = Callable[..., Checkpoints]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield Events(file.fileno())


@pytest.fixture
def opened(tmp_path: Path, events: Events) -> Opened:
    """Return a function that opens the checkpoints of a generation."""

    def open_checkpoints(generation: int = 1, *lineage: Span, **changes: Any) -> Checkpoints:
        config = make_config(make_spec(tmp_path, tmp_path, **changes))
        return Checkpoints(tmp_path, config, make_world(generation, 1, lineage), Peers(0, 1), "index", events)

    return open_checkpoints


def committed(tmp_path: Path) -> list[int | None]:
    lines = (tmp_path / "events").read_text().splitlines()
    return [event.committed for event in map(Event.model_validate_json, lines) if event.committed]


def make_state(shape: tuple[int, int], step: int = 0) -> State:
    """Return a state whose matrices are split both ways over a mesh of this shape."""
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("a", "b"))

    def place(value: np.ndarray, *spec: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))

    matrix = np.arange(64, dtype=np.float32).reshape(8, 8) + step
    scalar = np.array(step, np.int32)
    return State(
        place(scalar), {"w": place(matrix, "a", "b")}, {"m": place(-matrix, "b")}, place(scalar), place(scalar)
    )


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


def test_nothing_saved_is_nothing_restored(opened: Opened) -> None:
    checkpoints = opened()

    assert checkpoints.restore(describe(make_state((1, 1)))) is None
    assert checkpoints.newest == 0


def test_a_step_that_an_ended_generation_saved_is_written_anew(opened: Opened, tmp_path: Path) -> None:
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


def test_a_state_of_another_shape_is_a_config_failure(opened: Opened) -> None:
    saving = opened()
    saving.save(1, make_state((1, 1)))
    saving.wait()
    target = describe(make_state((1, 1)))
    wide = jax.ShapeDtypeStruct((8, 16), np.float32, sharding=target.params["w"].sharding)

    with pytest.raises(TrainingError, match="step 1 holds the state of another model") as caught:
        opened(2).restore(target._replace(params={"w": wide}))

    assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, "spec.model")


def test_a_save_that_fails_in_the_background_stops_training(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainingjob_trainer.checkpoints.write_integrity", full)
    checkpoints = opened()
    checkpoints.save(2, make_state((1, 1)))

    with pytest.raises(TrainingError, match="saving step 2 failed: No space left on device") as caught:
        checkpoints.wait()

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, False)
    assert committed(tmp_path) == []


def test_a_step_that_is_there_already_is_not_passed_over(opened: Opened) -> None:
    checkpoints = opened()
    checkpoints.save(2, make_state((1, 1)))

    with pytest.raises(ValueError, match="already exists"):
        checkpoints.save(2, make_state((1, 1)))


KEEPS: dict[str, tuple[list[int], Keep, int, list[int]]] = {
    "the newest few": ([2, 4, 6, 8], Keep(last=2), 0, [2, 4]),
    "fewer than kept": ([2, 4], Keep(last=3), 0, []),
    "multiples for good": ([2, 4, 6, 8, 10], Keep(last=1, every_steps=4), 0, [2, 6]),
    "the step that was restored": ([2, 4, 6, 8], Keep(last=1), 4, [2, 6]),
}


@pytest.mark.parametrize(("saved", "keep", "restored", "want"), KEEPS.values(), ids=KEEPS.keys())
def test_choose_deletions(saved: list[int], keep: Keep, restored: int, want: list[int]) -> None:
    assert choose_deletions(saved, keep, restored) == want


def test_old_steps_are_deleted_only_after_the_new_one_is_proven(opened: Opened, tmp_path: Path) -> None:
    checkpoints = opened(checkpoint__keep__last=1)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state((1, 1), step))
        checkpoints.wait()

    assert [path.name for path in (tmp_path / "lineage-0").iterdir()] == ["3"]
    assert committed(tmp_path) == [1, 2, 3]
