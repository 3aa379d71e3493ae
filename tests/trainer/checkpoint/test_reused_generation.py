"""A job whose status was lost or restored from a backup: the operator gives a number of a world a second time."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.shelf import DATA, STATE, record
from tests.support.trainer.stores import Stores
from tests.support.trainer.tiny import UID, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.checkpoint import candidates, fence
from trainingjob_trainer.checkpoint.commit import commit_step
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.restore_search import RestoreSearch
from trainingjob_trainer.checkpoint.retention import Keep, delete_expired
from trainingjob_trainer.checkpoint.saved_steps import list_saved
from trainingjob_trainer.checkpoint.step_changes import claim_step, new_step_folder
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

REUSED = "another world was generation 1 of the job: its status was lost"
OPENERS: dict[str, Callable[[Path], Store]] = {
    "posix": lambda folder: open_store(folder / "run"),
    "objects in memory": lambda folder: ObjectStore(),
}


@pytest.fixture
def as_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let what is made from now on belong to the process of this name."""
    return lambda name: monkeypatch.setattr(fence, "THIS_PROCESS", name)


def test_a_second_first_world_deletes_nothing_and_the_next_one_resumes(
    stores: Stores, as_process: Callable[[str], None]
) -> None:
    as_process("first")
    first = stores.open()
    first.restore()
    first.save(10, 20)
    as_process("second")

    with pytest.raises(TrainingError, match=REUSED) as caught:
        stores.open().restore()

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, False)
    assert caught.value.newest_generation == 1
    assert stores.names() == ["10", "20"]
    as_process("third")
    restored = stores.open(2).restore()
    assert restored is not None
    assert int(restored.step) == 20
    with pytest.raises(TrainingError, match="generation 2 of the job is there"):
        first.save(30)


def test_where_the_fast_store_came_back_empty_the_copies_stay(
    stores: Stores, as_process: Callable[[str], None]
) -> None:
    as_process("first")
    first = stores.open()
    first.restore()
    first.save(10)
    for path in sorted(stores.fast.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    as_process("second")

    with pytest.raises(TrainingError, match="another world was generation 1") as caught:
        stores.open().restore()

    assert caught.value.newest_generation == 1
    assert stores.names() == ["10"]
    as_process("third")
    assert int(getattr(stores.open(2).restore(), "step", 0)) == 10


def test_the_marker_of_an_older_trainer_counts_as_another_world(tmp_path: Path) -> None:
    (tmp_path / f"WORLD-1-{UID}").touch()

    with pytest.raises(TrainingError, match=REUSED):
        Fence(open_store(tmp_path), make_world(1, 1)).claim()
    Fence(open_store(tmp_path), make_world(2, 1)).claim()


def test_a_world_ends_when_an_older_trainer_takes_its_number(tmp_path: Path) -> None:
    first = Fence(open_store(tmp_path), make_world(1, 1))
    first.claim()
    first.check()
    open_store(tmp_path).write(f"WORLD-1-{UID}", ())  # what an older trainer does

    with pytest.raises(TrainingError, match=REUSED):
        first.check()


def test_a_marker_that_is_too_long_is_that_of_another_world(tmp_path: Path) -> None:
    (tmp_path / f"WORLD-1-{UID}").write_bytes(b"x" * (fence.MAX_BYTES + 1))

    with pytest.raises(TrainingError, match=REUSED):
        Fence(open_store(tmp_path), make_world(1, 1)).check()


class Job:
    """Worlds of a job on a store, each of one process, and an operator that counts them and may forget the count."""

    def __init__(self, store: Store, events: AgentEvents) -> None:
        self.store = store
        self.events = events
        self.generation = 0
        self.fences: list[Fence] = []
        self.resumed: dict[Fence, int] = {}
        """The newest step of each world that resumed."""
        self.num_saves = 0

    def start(self) -> None:
        """Let the next world begin, in another process."""
        self.generation += 1
        world = make_world(self.generation, 1)
        patch = pytest.MonkeyPatch()
        patch.setattr(fence, "THIS_PROCESS", f"process {len(self.fences)}")
        own = Fence(self.store, world)
        self.fences.append(own)
        newest = max((one.step for one in list_saved(self.store) if one.is_committed), default=0)
        search = RestoreSearch(candidates.Stores(self.store), world, ProcessGroup(0, 1), self.events, takeover=False)
        try:
            found = search.find(EXPECTED)
        except TrainingError as error:
            message = str(error)
            assert re.search("another world was generation|generation .* of the job is there", message)
        else:
            assert (found.step if isinstance(found, StepFolder) else 0) == newest, "the newest step is lost"
            self.resumed[own] = newest
        finally:
            patch.undo()

    def save(self, number: int) -> None:
        """Let a world that has resumed save its next step, and delete what it need not keep."""
        if not self.resumed:
            return
        own = list(self.resumed)[number % len(self.resumed)]
        step = self.resumed[own] + 1
        self.num_saves += 1
        folder = new_step_folder(self.store, 0, step, own, self.num_saves)
        try:
            own.check()
            claim_step(folder, own)
            commit_step(folder, record(own.generation, step), own)
            delete_expired(self.store, own, Keep(last=1), step, ())
        except TrainingError:
            assert own is not list(self.resumed)[-1], "the newest world is fenced off"
        else:
            assert own is list(self.resumed)[-1], "a world that was replaced has saved"
            self.resumed[own] = step

    def lose_status(self, number: int) -> None:
        """Let the operator forget the newest worlds."""
        self.generation = number % (self.generation + 1)


EXPECTED = candidates.Expected(DATA, lambda saved: saved.state == STATE)
ACTS = st.lists(st.tuples(st.sampled_from(["start", "save", "lose"]), st.integers(0, 5)), max_size=20)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acts=ACTS)
def test_whatever_the_operator_forgets_no_world_loses_the_newest_step(
    opener: Callable[[Path], Store], acts: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    with (folder / "events").open("wb", buffering=0) as file:
        job = Job(opener(folder), AgentEvents(file.fileno()))
        acting: dict[str, Any] = {"start": lambda _: job.start(), "save": job.save, "lose": job.lose_status}
        for act, number in acts:
            acting[act](number)
