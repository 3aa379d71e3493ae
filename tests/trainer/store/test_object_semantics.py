"""The rules of steps on every store: commits, fences, copies, restores, quarantine and deletions."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.shelf import DATA, OPEN, STATE, record
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.spec.checkpoint import Keep
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.candidates import Expected, Stores
from trainingjob_trainer.checkpoint.commit import Committer
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.restore_search import RestoreSearch
from trainingjob_trainer.checkpoint.retention import delete_expired
from trainingjob_trainer.checkpoint.saved_steps import list_saved
from trainingjob_trainer.checkpoint.step_copier import StepCopier
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store, has_object

ALONE = ProcessGroup(0, 1)


class Arrays:
    """What Orbax does with a copied state: it writes below a location."""

    problem = ""

    def __init__(self, store: Store, location: str) -> None:
        self.store, self.folder = store, location.removeprefix(f"{store.root}/")

    def copy(self, location: str, state: object) -> "Arrays":
        return Arrays(self.store, location)

    def write(self) -> None:
        self.store.write(f"{self.folder}/d/0", (b"numbers" * 10,))

    def finalize(self) -> None:
        self.store.write(f"{self.folder}/metadata", (b"{}",))

    def give_up(self) -> None:
        pass


class Jobs:
    """Worlds of a job that save to one store and copy to another."""

    def __init__(self, folder: Path, durable: Store, backup: Store) -> None:
        self.durable, self.backup = durable, backup
        self.log = folder / "events"
        self._file = self.log.open("wb", buffering=0)
        copies = {"uri": "/slow/run", "every": "0s", "keep": 2}
        self._config = make_config(make_spec(folder, folder, checkpoint__backup=copies))

    def open(self, generation: int) -> Committer:
        committer = Committer(self.durable, ALONE, "host", Fence(self.durable, make_world(generation, 1)))
        orbax: Any = Arrays(self.durable, "")
        committer.orbax = orbax
        return committer

    def save(self, generation: int, *steps: int) -> StepFolder:
        committer = self.open(generation)
        for step in steps:
            pending = committer.begin(0, step, {})
            saved = committer.finish(pending, record(generation, step))
            copier = StepCopier(
                self.backup, self._config, Fence(self.durable, make_world(generation, 1)), ALONE, "host"
            )
            copier.copy(pending.folder, saved)
        return pending.folder

    def find(self, generation: int) -> tuple[str, int] | None:
        world = make_world(generation, 1, OPEN)
        stores = Stores(self.durable, self.backup)
        search = RestoreSearch(stores, world, ALONE, AgentEvents(self._file.fileno()), takeover=False)
        found = search.find(Expected(DATA, lambda saved: saved.state == STATE))
        return (found.store.root, found.step) if isinstance(found, StepFolder) else None

    def damaged(self) -> list[str]:
        events = map(AgentEvent.model_validate_json, self.log.read_text().splitlines())
        return [event.damaged.message for event in events if event.damaged]

    def close(self) -> None:
        self._file.close()


OPENERS: dict[str, Callable[[Path, str], Store]] = {
    "posix": lambda folder, name: open_store(folder / name),
    "objects in memory": lambda _, name: ObjectStore(f"mem://{name}"),
}


@pytest.fixture(params=[*OPENERS, *SCHEMES])
def jobs(request: pytest.FixtureRequest, tmp_path: Path, object_servers: ObjectServers) -> Iterator[Jobs]:
    with ExitStack() as stack:
        if request.param in SCHEMES:
            stack.enter_context(object_servers.environment(request.param))
            durable, backup = open_store(new_root(request.param)), open_store(new_root(request.param))
        else:
            durable, backup = (OPENERS[request.param](tmp_path, name) for name in ("fast", "slow"))
        yield stack.enter_context(closing(Jobs(tmp_path, durable, backup)))


def delete_all(store: Store) -> None:
    for entry in store.list_folder():
        (store.delete_tree if entry.is_folder else store.delete)(entry.name)


def test_the_newest_step_is_restored_and_a_copy_where_it_is_gone(jobs: Jobs) -> None:
    jobs.save(1, 10, 20)
    assert jobs.find(2) == (jobs.durable.root, 20)

    delete_all(jobs.durable)
    assert jobs.find(3) == (jobs.backup.root, 20)


def test_an_interrupted_save_is_no_step_and_is_deleted(jobs: Jobs) -> None:
    jobs.save(1, 10)
    folder = jobs.save(1, 20)
    delete_all(jobs.backup)
    jobs.durable.delete(folder.file("integrity.json"))

    assert jobs.find(2) == (jobs.durable.root, 10)
    assert (jobs.durable.list_files(folder.name), jobs.damaged()) == ([], [])


def test_a_damaged_step_is_quarantined_and_stays(jobs: Jobs) -> None:
    jobs.save(1, 10)
    folder = jobs.save(1, 20)
    delete_all(jobs.backup)
    jobs.durable.write(folder.file("d/0"), (b"n" * 70,))

    assert jobs.find(2) == (jobs.durable.root, 10)
    assert jobs.damaged() == ["d/0 has changed since it was saved"]
    assert has_object(jobs.durable, f"{folder.name}.quarantined")
    assert jobs.durable.list_files(folder.name) == ["d/0", "integrity.json", "metadata", "writer.json"]


def test_earlier_world_cannot_commit_after_its_successor(jobs: Jobs) -> None:
    jobs.save(1, 10)
    early = jobs.open(1)
    pending = early.begin(0, 20, {})
    jobs.find(2)
    jobs.save(2, 20)

    with pytest.raises(TrainingError, match="generation 2 of the job is there"):
        early.finish(pending, record(1, 20))
    assert [(one.step, one.integrity.generation) for one in list_saved(jobs.durable) if one.integrity] == [
        (10, 1),
        (20, 2),
    ]


def test_old_steps_are_deleted_to_the_last_object(jobs: Jobs) -> None:
    newest = jobs.save(1, 10, 20, 30)

    delete_expired(jobs.durable, Fence(jobs.durable, make_world(1, 1)), Keep(last=1), 30, ())

    assert jobs.durable.list_files("lineage-0") == [
        newest.file(name).removeprefix("lineage-0/") for name in ("d/0", "integrity.json", "metadata", "writer.json")
    ]


def test_a_folder_has_one_owner(jobs: Jobs, tmp_path: Path) -> None:
    for uid in (UID, UID, "other"):
        config = make_config(make_spec(tmp_path, tmp_path), uid=uid)
        owner.check_writable(jobs.durable)
        if uid == UID:
            owner.claim(jobs.durable, config)
            continue
        with pytest.raises(TrainingError, match="holds the checkpoints of tests/tiny"):
            owner.claim(jobs.durable, config)
    assert [entry.name for entry in jobs.durable.list_folder()] == ["OWNER"]
