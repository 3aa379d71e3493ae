"""The step that another program takes from a folder that several jobs have owned."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trainer.shelf import Shelf, list_steps
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_trainer.checkpoint.initialize import find_intact_step
from trainingjob_trainer.runtime.process_group import ProcessGroup


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """A folder that the second job took over at step 50, after a rollback of the first one."""
    made = Shelf(tmp_path)
    made.save(40, 3, uid="first")
    made.save(50, 7, uid="first", lineage=1)
    made.save(200, 1, uid="second")
    yield made
    made.close()


def find(root: Path, step: int | None = None) -> tuple[int, int | None]:
    folder = find_intact_step(InitializeFrom(uri=str(root), step=step), ProcessGroup(0, 1))
    return folder.step, folder.lineage


OWNERS: dict[str, tuple[str, int]] = {
    "no owner": ("", 200),
    "an owner of an older trainer": ('{"uid": "second", "job": "a/b"}\n', 200),
    "an owner without any step": ('{"uid": "third", "job": "a/b", "former": ["second", "first"]}\n', 200),
    "an owner that is being written": ('{"uid":', 200),
    "another order of owners": ('{"uid": "first", "job": "a/b", "former": ["second"]}\n', 50),
}


@pytest.mark.parametrize(("owner", "want"), OWNERS.values(), ids=OWNERS.keys())
def test_newest_step_is_that_of_the_newest_owner(shelf: Shelf, owner: str, want: int) -> None:
    if owner:
        (shelf.root / "OWNER").write_text(owner)

    assert find(shelf.root)[0] == want


def test_named_step_is_that_of_the_newest_owner_which_has_it(shelf: Shelf) -> None:
    shelf.save(40, 4, uid="first", lineage=1)

    assert [find(shelf.root, step) for step in (40, 50, 200)] == [(40, 1), (50, 1), (200, 0)]
    assert list_steps(shelf.folder) == ["200", "40"]


def test_newest_lineage_of_a_job_comes_before_its_newest_step(shelf: Shelf) -> None:
    shelf.save(100, 2, uid="second", lineage=1)

    assert find(shelf.root) == (100, 1)
