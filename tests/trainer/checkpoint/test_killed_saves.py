"""A world that is killed at any moment of a save: the newest committed step is restored.

A kill leaves on storage the files of that moment. So one save is traced, the folder is copied before each file
operation, and a world resumes from each of these copies.
"""

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.shelf import list_steps, read_record
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import FROZEN, describe, make_state
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.candidates import Expected, Stores
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.manifest import list_files, read_integrity
from trainingjob_trainer.checkpoint.restore_search import RestoreSearch
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.store.opening import open_store

CHANGES = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
"""What Python tells its audit hooks before it does it."""


class Camera:
    """Copies a folder before each change of a file below it, by whichever thread."""

    def __init__(self, root: Path, images: Path) -> None:
        self.root = root
        self.images = images
        self.is_on = False
        self._newest: dict[str, int] = {}
        self._lock = threading.Lock()
        self._busy = threading.local()
        sys.addaudithook(self._hear)  # it stays for the life of this process, and sleeps

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.is_on = True
        yield
        self.is_on = False
        self.take()

    def take(self) -> None:
        """Copy the folder unless it is unchanged."""
        with self._lock:
            found = {path.relative_to(self.root).as_posix(): size_of(path) for path in self.root.rglob("*")}
            if found != self._newest:
                self._newest = found
                copy(self.root, self.images / f"{len(list(self.images.iterdir())):03}")

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on or event not in CHANGES or getattr(self._busy, "is_so", False):
            return
        if not any(str(one).startswith(str(self.root)) for one in arguments[:2]):
            return
        self._busy.is_so = True
        try:
            self.take()
        finally:
            self._busy.is_so = False


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except FileNotFoundError:
        return -1


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():
            copy(path, target / path.name)
        else:
            with suppress(FileNotFoundError):  # a thread of the store's own, which nobody watches, took its lock away
                shutil.copy2(path, target)


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


@pytest.mark.parametrize("frozen", [False, True], ids=["complete step", "first save of frozen tensors"])
def test_whenever_a_save_is_killed_the_newest_proven_step_is_found(
    frozen: bool, tmp_path: Path, events: AgentEvents
) -> None:
    root, images = tmp_path / "root", tmp_path / "images"
    root.mkdir()
    images.mkdir()
    camera = Camera(root, images)
    spec = make_spec(root, root, checkpoint__keep__last=1)
    checkpoints = Checkpoints(root, make_config(spec), make_world(1, 1), ProcessGroup(0, 1), "index", events)
    checkpoints.save(2, make_state((1, 1), 2, frozen=frozen))
    checkpoints.wait()
    if frozen:  # as a newer trainer resumes from the complete step of an older one
        spec |= make_spec(root, root, checkpoint__keep__last=1, **FROZEN)
        checkpoints = Checkpoints(root, make_config(spec), make_world(1, 1), ProcessGroup(0, 1), "index", events)
    (tmp_path / "events").write_text("")

    with camera.watching():
        checkpoints.save(4, make_state((1, 1), 4, frozen=frozen))
        checkpoints.wait()

    found = [find(image, events, frozen=frozen) for image in sorted(images.iterdir())]
    assert found == sorted(found)
    assert {2, 4} == set(found)
    assert len(found) >= 10, "the folder as it was before, while Orbax writes, hashed, proven, moved, and cleared"
    assert [line for line in (tmp_path / "events").read_text().splitlines() if "damaged" in line] == []


def find(image: Path, events: AgentEvents, *, frozen: bool) -> int:
    """Return the step that a world resumes from with the storage of an image, also with a truncated file."""
    world = make_world(2, 1, (Span(generation=1, first=1),)).model_copy(update={"committed": 2})
    state = hash_shapes(describe(make_state((1, 1), frozen=frozen)))
    proven = [path.parent for path in image.glob("lineage-0/*/integrity.json")]
    want = max(read_record(folder).step for folder in proven)
    committed = [*proven, *(path.parent for path in image.glob("frozen/*/integrity.json"))]
    files = [path for path in image.rglob("*") if path.is_file() and not any(one in path.parents for one in committed)]
    if files:
        newest = max(files, key=lambda path: path.stat().st_mtime_ns)
        newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])

    stores = Stores(open_store(image))
    expected = Expected("index", lambda saved: saved.state == state)
    folder = RestoreSearch(stores, world, ProcessGroup(0, 1), events, takeover=False).find(expected)

    assert isinstance(folder, StepFolder)
    assert folder.step == want
    record = read_integrity(folder)
    assert record
    assert record.files, "a step without files is no step"
    assert list_files(folder) == sorted(record.files)
    assert list_steps(image / "lineage-0") in ([["2"]] if want == 2 else [["2", "4"], ["4"]])
    return want
