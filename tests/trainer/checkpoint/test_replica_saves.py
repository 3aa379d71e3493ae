"""Checkpoints of a replica: one member of each round saves, and the others count the round as saved."""

import json
from pathlib import Path

import jax
import pytest

from tests.support.trainer.shelf import list_steps, read_record, step_path
from tests.trainer.checkpoint.test_checkpoints import Opened, committed, events, make_state, opened, refuse  # noqa: F401
from trainingjob_trainer.state import State

BASE = jax.numpy.arange(8, dtype=jax.numpy.uint32)


class Member:
    """A replica that is asked for its part of each save."""

    def __init__(self, *, is_saver: bool) -> None:
        self.is_saver = is_saver
        self.deleted: list[int] = []

    def attach_outer(self, state: State) -> State:
        return state._replace(outer_base=BASE)

    def delete_rounds(self, saved: int) -> None:
        self.deleted.append(saved)


@pytest.fixture
def state() -> State:
    return make_state((1, 1))


def test_the_saver_saves_the_outer_optimizer_and_deletes_rounds_after_the_commit(
    opened: Opened,  # noqa: F811
    tmp_path: Path,
    state: State,
) -> None:
    checkpoints = opened(checkpoint__keep__last=1)
    checkpoints.replica = member = Member(is_saver=True)

    for step in (4, 8, 12):
        checkpoints.save(step, state)
        checkpoints.wait()

    assert "outer_base" in read_record(step_path(tmp_path, 12)).items
    assert (checkpoints.newest, committed(tmp_path)) == (12, [4, 8, 12])
    assert member.deleted == [0, 4, 8], "one that joins may be reading the checkpoint before the newest"
    assert list_steps(tmp_path / "lineage-0") == ["12", "8"]


def test_another_member_writes_nothing_and_counts_the_step_as_saved(
    opened: Opened,  # noqa: F811
    tmp_path: Path,
    state: State,
) -> None:
    checkpoints = opened(checkpoint__keep__best={"evaluation": "news"})
    checkpoints.replica = member = Member(is_saver=False)

    checkpoints.save(4, state, {"news": 1.0})
    checkpoints.wait()

    assert (list(tmp_path.glob("lineage-*")), member.deleted, committed(tmp_path)) == ([], [], [])
    assert checkpoints.newest == 4
    assert not checkpoints.is_best({"news": 2.0})


def test_a_failed_save_is_not_retried_once_another_member_saves(
    opened: Opened,  # noqa: F811
    tmp_path: Path,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = opened()
    checkpoints.replica = member = Member(is_saver=True)
    with monkeypatch.context() as broken:
        broken.setattr("trainingjob_trainer.checkpoint.commit.write_integrity", refuse)
        checkpoints.save(4, state)
        checkpoints.wait()
    assert (checkpoints.is_failing, member.deleted) == (True, [])
    member.is_saver = False

    checkpoints.save(8, state)
    checkpoints.save_until_success(8, state)

    assert (checkpoints.is_failing, checkpoints.newest) == (False, 8)
    assert "8" not in json.dumps(list_steps(tmp_path / "lineage-0"))
