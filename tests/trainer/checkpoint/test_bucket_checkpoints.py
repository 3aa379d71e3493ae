"""Checkpoints with real arrays in buckets: saves, restores, backups, damage, takeovers, and saves that are killed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import FROZEN, describe, make_state
from trainingjob_agent.checkpoint_layout import FROZEN_FOLDER
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.world import RunConfig, Span
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.candidates import Expected
from trainingjob_trainer.checkpoint.candidates import Stores as Candidates
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.restore_search import RestoreSearch
from trainingjob_trainer.checkpoint.saved_steps import list_saved
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.state import State
from trainingjob_trainer.store.array_paths import array_path
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

FIRST = Span(generation=1, first=1)


class BucketJob:
    """A job whose checkpoints and copies are in buckets."""

    def __init__(self, folder: Path, scheme: str, *, frozen: bool) -> None:
        self.folder = folder
        self.frozen = frozen
        self.root, self.slow = new_root(scheme), new_root(scheme)
        self.log = folder / "events"
        self._file = self.log.open("wb", buffering=0)
        self.events = AgentEvents(self._file.fileno())

    @property
    def durable(self) -> Store:
        return open_store(self.root)

    @property
    def backup(self) -> Store:
        return open_store(self.slow)

    def config(self, *, uid: str = UID, takeover: bool = False, last: int = 2) -> RunConfig:
        copies = {"uri": "/slow/run", "every": "0s", "keep": 2}
        changes = {"checkpoint__backup": copies, "checkpoint__takeover": takeover, "checkpoint__keep__last": last}
        changes |= FROZEN if self.frozen else {}
        config = make_config(make_spec(self.folder, self.folder, **changes), uid=uid)
        backup = config.spec.checkpoint.backup
        assert backup
        checkpoint = config.spec.checkpoint.model_copy(
            update={"uri": self.root, "backup": backup.model_copy(update={"uri": self.slow})}
        )
        return config.model_copy(update={"spec": config.spec.model_copy(update={"checkpoint": checkpoint})})

    def open(self, generation: int = 1, *lineage: Span, **changes: Any) -> Checkpoints:
        world = make_world(generation, 1, lineage)
        return Checkpoints(self.root, self.config(**changes), world, ProcessGroup(0, 1), "index", self.events)

    def save(self, checkpoints: Checkpoints, *steps: int) -> None:
        for step in steps:
            checkpoints.save(step, self.state((4, 2), step))
            checkpoints.wait()
            backup = checkpoints._upkeep.backup
            if backup and backup._thread:
                backup._thread.join(ENDLESS_SECONDS)

    def state(self, shape: tuple[int, int], step: int = 0) -> State:
        return make_state(shape, step, frozen=self.frozen)

    def reported(self) -> list[AgentEvent]:
        return [AgentEvent.model_validate_json(line) for line in self.log.read_text().splitlines()]

    def problems(self) -> list[str]:
        events = self.reported()
        failed = [each.message for event in events for each in (event.failed_save, event.failed_copy) if each]
        return failed + [event.damaged.message for event in events if event.damaged]

    def close(self) -> None:
        self._file.close()


@pytest.fixture(params=[(scheme, frozen) for frozen in (False, True) for scheme in SCHEMES], ids=str)
def job(request: pytest.FixtureRequest, tmp_path: Path, object_servers: ObjectServers) -> Iterator[BucketJob]:
    scheme, frozen = request.param
    with object_servers.environment(scheme):
        job = BucketJob(tmp_path, scheme, frozen=frozen)
        yield job
        job.close()


def steps(store: Store) -> list[int]:
    return [saved.step for saved in list_saved(store) if saved.integrity]


def check_restored(restored: State | None, want: State, target: State) -> None:
    assert restored is not None
    for seen, expected, place in zip(*map(jax.tree.leaves, (restored, want, target)), strict=True):
        assert np.array_equal(seen, expected)
        assert seen.sharding == place.sharding


def test_a_state_is_restored_onto_another_mesh(job: BucketJob) -> None:
    job.save(job.open(), 7)
    target = job.state((1, 2))

    check_restored(job.open(2, FIRST).restore(describe(target)), job.state((4, 2), 7), target)
    assert job.problems() == []


def test_old_steps_and_copies_are_deleted(job: BucketJob) -> None:
    job.save(job.open(), 2, 4, 6)

    assert (steps(job.durable), steps(job.backup)) == ([4, 6], [4, 6])
    assert [event.copied for event in job.reported() if event.copied] == [2, 4, 6]
    for store in (job.durable, job.backup):
        assert len(store.list_folder(FROZEN_FOLDER)) == job.frozen
        named = {saved.folder.name.removeprefix("lineage-0/") for saved in list_saved(store)}
        assert {name.split("/")[0] for name in store.list_files("lineage-0")} == named


def test_a_copy_is_restored_where_the_step_is_damaged(job: BucketJob) -> None:
    job.save(job.open(), 2, 4)
    for saved in list_saved(job.durable):
        for name in job.durable.list_files(saved.folder.name):
            if "/d/" in f"/{name}":
                job.durable.write(saved.folder.file(name), (b"damaged",))
    target = job.state((4, 2))

    check_restored(job.open(2, FIRST).restore(describe(target)), job.state((4, 2), 4), target)
    assert all("bytes instead of" in problem for problem in job.problems())
    assert job.problems()


def test_another_job_needs_a_takeover(job: BucketJob) -> None:
    owner.claim(job.durable, job.config())
    job.save(job.open(), 2)
    with pytest.raises(TrainingError, match="holds the checkpoints of tests/tiny"):
        owner.claim(job.durable, job.config(uid="other"))

    owner.claim(job.durable, job.config(uid="other", takeover=True))
    with pytest.raises(TrainingError, match="another job"):
        job.save(job.open(1, FIRST), 4)
    assert steps(job.durable) == [2]


def test_a_later_world_fences_off_an_earlier_one(job: BucketJob) -> None:
    early = job.open()
    job.save(early, 2)
    late = job.open(2, FIRST)
    late._fence.claim()

    with pytest.raises(TrainingError, match="generation 2 of the job is there"):
        job.save(early, 4)
    assert steps(job.durable) == [2]


def test_regions_of_saved_parameters_are_read(job: BucketJob) -> None:
    job.save(job.open(), 7)
    (saved,) = list_saved(job.durable)

    params = SavedParams(*find_array_folders(saved.folder)[:2])

    assert params.shape("embedding") == ((64, 64) if job.frozen else None)
    assert params.shape("w") == (8, 8)
    assert params.shape("missing") is None
    assert np.array_equal(params.read("w", ((2, 4), (1, 3))), np.asarray(make_state((1, 1), 7).params["w"])[2:4, 1:3])


def test_orbax_itself_reads_a_saved_step(job: BucketJob) -> None:
    job.save(job.open(), 7)
    (saved,) = list_saved(job.durable)

    with ocp.StandardCheckpointer() as reader:
        restored = reader.restore(array_path(saved.folder.location), saved_form(make_state((4, 2), 7)))
    assert np.array_equal(restored["params"]["w"], make_state((4, 2), 7).params["w"])


def saved_form(state: State) -> dict[str, Any]:
    return {name: value for name, value in describe(state)._asdict().items() if value is not None}


@pytest.mark.thorough
def test_whenever_a_save_is_killed_the_newest_committed_step_is_found(
    object_servers: ObjectServers, job: BucketJob
) -> None:
    scheme = job.root.partition("://")[0]
    job.save(job.open(last=1), 2)
    direct, proxy = open_store(job.root), object_servers.proxy(scheme)
    images: list[dict[str, bytes]] = []
    lock = threading.Lock()

    def take(method: str, _path: str) -> str:
        if method in ("PUT", "POST", "DELETE"):
            with lock:
                image = {name: direct.read(name, 1 << 30) for name in list_all(direct)}
                if image not in images:
                    images.append(image)
        return ""

    proxy.choose = take
    with object_servers.environment(scheme, proxy.url):
        job.save(job.open(last=1), 4)
    proxy.stop()
    take("PUT", "")

    with object_servers.environment(scheme):
        found = [find(image, open_store(new_root(scheme)), job) for image in images]
    assert found == sorted(found)
    assert set(found) == {2, 4}
    assert len(found) >= 8
    assert job.problems() == []


def list_all(store: Store) -> list[str]:
    return [
        each
        for entry in store.list_folder()
        for each in (
            [f"{entry.name}/{name}" for name in store.list_files(entry.name)] if entry.is_folder else [entry.name]
        )
    ]


def find(image: dict[str, bytes], store: Store, job: BucketJob) -> int:
    """Return the step that a world resumes from with the objects of an image."""
    for name, content in image.items():
        store.write(name, (content,))
    world = make_world(2, 1, (FIRST,)).model_copy(update={"committed": 2})
    state = hash_shapes(describe(job.state((4, 2))))
    expected = Expected("index", lambda saved: saved.state == state)
    folder = RestoreSearch(Candidates(store), world, ProcessGroup(0, 1), job.events, takeover=False).find(expected)
    assert isinstance(folder, StepFolder)
    return folder.step
