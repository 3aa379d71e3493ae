"""Exports of kept checkpoints: complete or absent, deleted with their checkpoints, reported when they fail."""

import errno
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.meeting import together
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.shelf import flip, list_steps, step_path
from tests.support.trainer.stores import FIRST, largest
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.network.resolve import resolve
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import Export, HuggingFaceExport
from trainingjob_api.spec.memory import Memory
from trainingjob_api.world import RunConfig, Span
from trainingjob_trainer.checkpoint import export_folders, kept_exports
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.export_folders import RECORD_FILE
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.kept_exports import KeptExports, claim, find_kept_export
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore

EMBEDDING = "model.embed_tokens.weight"


class Job:
    """A job that exports, and its worlds of one process."""

    def __init__(self, folder: Path) -> None:
        self.saved, self.exported, self.log = folder / "fast/run", folder / "out/run", folder / "events"
        self.file = self.log.open("wb", buffering=0)
        self.events = AgentEvents(self.file.fileno())
        spec = self.config().spec
        model = split_model(resolve(spec.model), spec.precision, Memory(remat="none"), accelerator="cpu")
        self.params: dict[str, Any] = jax.jit(lambda: model.init(0))()

    def config(self, uid: str = UID, *, last: int = 2, takeover: bool = False, **changes: Any) -> RunConfig:
        export = {"huggingFace": {"uri": str(self.exported), "when": "kept", **changes}}
        trained = ["embedding"]  # as `state` does: all other tensors are saved once
        changed = {"checkpoint__export": export, "checkpoint__takeover": takeover, "optimizer__trainable": trained}
        spec = make_spec(self.saved, self.saved, **changed)
        spec["checkpoint"]["keep"] = {"last": last}
        return make_config(spec, uid=uid)

    def open(self, generation: int = 1, *lineage: Span, **changes: Any) -> Checkpoints:
        world = make_world(generation, 1, lineage)
        return Checkpoints(str(self.saved), self.config(**changes), world, ProcessGroup(0, 1), "index", self.events)

    def state(self, step: int) -> State:
        scalar = jax.numpy.int32(step)
        params = {**self.params, "embedding": self.params["embedding"] + step}
        return State(scalar, params, {"m": scalar}, scalar, scalar)

    def save(self, world: Checkpoints, *steps: int) -> None:
        """Save steps one after the other, each after the export before it has ended."""
        for step in steps:
            world.save(step, self.state(step))
            world.wait()
            exports_of(world)._wait_for_thread()

    def complete(self) -> list[int]:
        """Return the steps whose exports are complete."""
        return sorted(int(path.parent.name.partition(".")[0]) for path in self.exported.rglob(RECORD_FILE))

    def folders(self) -> list[int]:
        """Return the steps that have a folder of an export, complete or not."""
        return sorted(int(path.name.partition(".")[0]) for path in self.exported.glob("lineage-*/*"))

    def folder(self, step: int) -> Path:
        (record,) = self.exported.glob(f"lineage-*/{step}.*/{RECORD_FILE}")
        return record.parent

    def told(self) -> list[AgentEvent]:
        return [AgentEvent.model_validate_json(line) for line in self.log.read_text().splitlines()]

    @property
    def reported(self) -> list[int]:
        return [event.exported for event in self.told() if event.exported is not None]

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [(one.failed_export.step, one.failed_export.message) for one in self.told() if one.failed_export]


def exports_of(world: Checkpoints) -> KeptExports:
    exports = world._upkeep.exports
    assert exports
    return exports


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.file.close()


def embedding(folder: Path) -> np.ndarray:
    weights = open_weights(open_store(folder))
    return weights.read(EMBEDDING, tuple((0, size) for size in weights.tensors[EMBEDDING].shape))


def test_each_kept_checkpoint_has_an_export_and_no_other_step(job: Job) -> None:
    world = job.open()

    job.save(world, 2, 4, 6)
    world.finish_exports()

    assert list_steps(job.saved / "lineage-0") == ["4", "6"]
    assert (job.complete(), job.reported, job.failed) == ([4, 6], [2, 4, 6], [])
    assert job.folders() == [4, 6], "nothing of a deleted checkpoint is left"
    for step in (4, 6):
        np.testing.assert_array_equal(embedding(job.folder(step)), np.asarray(job.params["embedding"]) + step)
        assert (job.folder(step) / "config.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_kept_checkpoint_of_a_bucket_has_an_export_in_a_bucket(
    scheme: str, object_servers: ObjectServers, job: Job
) -> None:
    with object_servers.environment(scheme):
        saved, exported = new_root(scheme), new_root(scheme)
        config = job.config()
        export = HuggingFaceExport(uri=exported, when="kept")
        checkpoint = config.spec.checkpoint.model_copy(update={"uri": saved, "export": Export(hugging_face=export)})
        config = config.model_copy(update={"spec": config.spec.model_copy(update={"checkpoint": checkpoint})})
        world = Checkpoints(saved, config, make_world(1, 1), ProcessGroup(0, 1), "index", job.events)

        job.save(world, 2, 4, 6)
        world.finish_exports()

        assert (job.reported, job.failed) == ([2, 4, 6], [])
        exports = list(export_folders.list_exports(open_store(exported)))
        assert [(one.folder.step, one.record is not None) for one in exports] == [(4, True), (6, True)]
        weights = open_weights(open_store(exports[1].folder.location))
        region = tuple((0, size) for size in weights.tensors[EMBEDDING].shape)
        np.testing.assert_array_equal(weights.read(EMBEDDING, region), np.asarray(job.params["embedding"]) + 6)


def test_training_does_not_wait_for_an_export_and_its_step_is_not_deleted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, real = threading.Event(), kept_exports.write_own_files

    def write_late(*args: Any) -> None:
        assert goes_on.wait(ENDLESS_SECONDS)
        real(*args)

    monkeypatch.setattr(kept_exports, "write_own_files", write_late)
    world = job.open(last=1)
    for step in (2, 4, 6):
        world.save(step, job.state(step))
        world.wait()
    assert list_steps(job.saved / "lineage-0") == ["2", "6"]

    goes_on.set()
    world.finish_exports()

    assert job.reported == [2, 6], "step 4 was kept no more"
    job.save(world, 8)
    assert (list_steps(job.saved / "lineage-0"), job.complete()) == (["8"], [8])


def test_a_full_store_is_reported_and_the_next_save_exports_what_is_missing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, real = job.open(), PosixStore.write
    with monkeypatch.context() as full:

        def write(self: PosixStore, name: str, chunks: Iterable[bytes]) -> None:
            if name.endswith(".safetensors"):
                raise OSError(errno.ENOSPC, "")
            real(self, name, chunks)

        full.setattr(PosixStore, "write", write)
        job.save(world, 2)
    assert (world.is_failing, job.failed) == (False, [(2, "host 0 of slice 0: No space left on device")])
    assert job.folders() == []

    job.save(world, 4)

    assert (job.complete(), job.reported) == ([2, 4], [4, 2])


def test_a_job_does_not_end_without_its_exports(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    world = job.open()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "")

    with monkeypatch.context() as broken:
        broken.setattr(kept_exports, "write_own_files", fail)
        job.save(world, 2)
        with pytest.raises(TrainingError, match="the next attempt exports them") as caught:
            world.finish_exports()
    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, False)
    assert caught.value.path == "spec.checkpoint.export.huggingFace.uri"

    following = job.open(2, FIRST)
    assert following.restore(job.state(0)) is not None
    following.finish_exports()

    assert job.complete() == [2]


def test_an_incomplete_export_of_a_killed_world_is_deleted_and_made_again(job: Job) -> None:
    job.save(job.open(), 2)
    (job.folder(2) / RECORD_FILE).unlink()

    world = job.open(2, FIRST)
    world.restore(job.state(0))
    world.finish_exports()

    (left,) = (job.exported / "lineage-0").iterdir()
    assert (left.name.startswith("2.g2.s1."), job.complete()) == (True, [2])


def test_a_world_that_is_fenced_off_completes_no_export(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = kept_exports.write_own_files

    def write_and_lose(*args: Any) -> None:
        real(*args)
        Fence(open_store(job.saved), make_world(2, 1)).claim()

    monkeypatch.setattr(kept_exports, "write_own_files", write_and_lose)
    job.save(job.open(), 2)

    assert job.complete() == []
    ((step, message),) = job.failed
    assert (step, "generation 2 of the job is there" in message) == (2, True)


def test_a_record_that_was_written_too_late_is_deleted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    world, real = job.open(), PosixStore.write

    def write(self: PosixStore, name: str, chunks: Iterable[bytes]) -> None:
        real(self, name, chunks)
        if name.endswith(RECORD_FILE):
            Fence(open_store(job.saved), make_world(2, 1)).claim()

    monkeypatch.setattr(PosixStore, "write", write)
    job.save(world, 2)

    assert (job.complete(), job.reported) == ([], [])


def test_a_checkpoint_that_has_changed_is_not_exported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = KeptExports.begin

    def flip_first(self: KeptExports, step: int) -> None:
        flip(largest(step_path(job.saved, step)))
        real(self, step)

    monkeypatch.setattr(KeptExports, "begin", flip_first)
    job.save(job.open(), 2)

    ((step, message),) = job.failed
    assert (step, message.endswith("has changed since it was saved"), job.complete()) == (2, True, [])


def test_another_format_replaces_an_export(job: Job) -> None:
    job.save(job.open(), 2)
    assert embedding(job.folder(2)).dtype == np.float32

    world = job.open(2, FIRST, dtype="bfloat16")
    world.restore(job.state(0))
    world.finish_exports()

    assert embedding(job.folder(2)).dtype.name == "bfloat16"


def test_hosts_choose_and_report_together(job: Job) -> None:
    job.save(job.open(), 2)
    (job.folder(2) / RECORD_FILE).unlink()
    world = make_world(2, 3)

    def act(peers: ProcessGroup) -> int:
        config = job.config()
        fence = Fence(open_store(job.saved), world)
        export = find_kept_export(config)
        assert export
        exports = KeptExports(export, config, open_store(job.saved), fence, peers, job.events, f"host {peers.process}")
        exports.begin(2)
        exports.finish()
        return exports._num_exports

    assert together(3, act) == [1, 1, 1]
    assert job.complete() == [2]


def test_a_store_that_does_not_respond_is_reported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    world = job.open()

    def fail(store: object) -> Any:
        raise OSError(errno.ESTALE, "")

    with monkeypatch.context() as broken:
        broken.setattr(kept_exports, "list_exports", fail)
        job.save(world, 2)
        assert job.failed == [(2, "Stale file handle")]

    job.save(world, 4)
    assert job.complete() == [2, 4]


def test_an_unreadable_record_counts_as_none(job: Job) -> None:
    job.save(job.open(), 2)
    (job.folder(2) / RECORD_FILE).write_text("[]")

    assert [one.record for one in export_folders.list_exports(open_store(job.exported))] == [None]


def test_the_folder_of_another_job_is_rejected_except_for_a_takeover(job: Job) -> None:
    claim(job.config())

    with pytest.raises(TrainingError, match="of tests/tiny") as caught:
        claim(job.config("other"))
    assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, kept_exports.FIELD)

    claim(job.config("other", takeover=True))
    with pytest.raises(TrainingError, match=r"UID other.* does not take it over again"):
        claim(job.config(takeover=True))


def test_an_export_of_the_last_step_claims_and_exports_nothing_else(job: Job) -> None:
    config = job.config(when="end")

    claim(config)

    assert find_kept_export(config) is None
    assert not job.exported.exists()
