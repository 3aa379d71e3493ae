"""A checkpoint folder with made-up steps, and made-up snapshots, for those who search them."""

import json
from pathlib import Path

import numpy as np

from tests.support.trainer.tiny import UID, make_world
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE, StepName, Writer, hash_job, parse_step_name
from trainingjob_api.world import Rollback, Span
from trainingjob_trainer.checkpoint.candidates import Expected, Stores
from trainingjob_trainer.checkpoint.manifest import Integrity, hash_files, list_files, read_integrity, write_integrity
from trainingjob_trainer.checkpoint.restore_search import RestoredSnapshot, RestoreSearch, SnapshotSource
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import State
from trainingjob_trainer.store.opening import open_store

DATA = "index"
STATE = "shapes"
HISTORY = (Span(generation=1, first=1, last=20), Span(generation=3, first=21))
OPEN = (Span(generation=1, first=1),)


def record(generation: int, step: int, uid: str = UID) -> Integrity:
    return Integrity(job_uid=uid, generation=generation, step=step, data=DATA, state=STATE, files={})


def at(path: Path) -> StepFolder:
    """Return the step folder at a path."""
    return StepFolder(open_store(path.parents[1]), f"{path.parent.name}/{path.name}")


def read_record(path: Path) -> Integrity:
    """Return the manifest of the step folder at a path."""
    record = read_integrity(at(path))
    assert record
    return record


def step_path(root: Path, step: int, lineage: int = 0) -> Path:
    """Return the folder of the step that is committed below a root."""
    (path,) = (
        path.parent
        for path in root.glob(f"lineage-{lineage}/*/{MANIFEST_FILE}")
        if (name := parse_step_name(path.parent.name)) and name.step == step
    )
    return path


def list_steps(folder: Path) -> list[str]:
    """Return what is in the folder of a lineage: steps by their number, quarantined ones marked, other names whole.

    A folder without a manifest is marked too.
    """
    names = {path.name for path in folder.iterdir()}
    listed = []
    for name in names:
        parsed = parse_step_name(name)
        if parsed and f"{name}.quarantined" in names:
            listed.append(f"{parsed.step} quarantined")
        elif parsed:
            listed.append(
                f"{parsed.step}" if (folder / name / MANIFEST_FILE).exists() else f"{parsed.step} interrupted"
            )
        elif not (name.endswith(".quarantined") and name.removesuffix(".quarantined") in names):
            listed.append(name)
    return sorted(listed)


class Shelf:
    """A lineage's folder with constructed steps, and the reports about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "lineage-0"
        self.folder.mkdir()
        self.log = root / "events"
        self._events = self.log.open("wb", buffering=0)
        self.events = AgentEvents(self._events.fileno())

    def save(
        self,
        step: int,
        generation: int = 1,
        *,
        uid: str = UID,
        data: str = DATA,
        commit: bool = True,
        lineage: int = 0,
        number: int = 1,
        is_older: bool = False,
    ) -> Path:
        name = StepName(step, None if is_older else Writer(hash_job(uid), generation, number))
        folder = self.root / f"lineage-{lineage}" / str(name)
        (folder / "array").mkdir(parents=True)
        (folder / "array/0").write_bytes(bytes([step]) * 100)
        (folder / "metadata").write_text("{}")
        if commit:
            files = hash_files(at(folder), list_files(at(folder)))
            integrity = Integrity(
                job_uid=uid,
                generation=generation,
                step=step,
                data=data,
                state=STATE,
                lineage=lineage,
                files=files,
            )
            write_integrity(at(folder), integrity)
        return folder

    def find(
        self,
        lineage: tuple[Span, ...] = (),
        *,
        takeover: bool = False,
        peers: ProcessGroup | None = None,
        memory: SnapshotSource | None = None,
        committed: int = 0,
        rollbacks: tuple[Rollback, ...] = (),
    ) -> int | Key | None:
        world = make_world(5, 1, lineage, rollbacks=rollbacks).model_copy(update={"committed": committed})
        stores = Stores(open_store(self.root))
        search = RestoreSearch(stores, world, peers or ProcessGroup(0, 1), self.events, memory, takeover=takeover)
        found = search.find(Expected(DATA, lambda saved: saved.state == STATE))
        if isinstance(found, RestoredSnapshot):
            return found.key
        return found.step if found else None

    def damaged(self) -> dict[int, str]:
        said = [json.loads(line)["damaged"] for line in self.log.read_text().splitlines()]
        return {one["step"]: one["message"] for one in said}

    def names(self) -> list[str]:
        return list_steps(self.folder)

    def close(self) -> None:
        self._events.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class Snapshots:
    """Snapshots of which some are damaged."""

    def __init__(self, *keys: Key, damaged: tuple[Key, ...] = ()) -> None:
        self.keys = sorted(keys)
        self.damaged = damaged

    @property
    def newest(self) -> Key | None:
        return self.keys[-1] if self.keys else None

    def past(self, key: Key) -> Provenance:
        return Provenance()

    def load(self, key: Key) -> State | None:
        if key in self.damaged:
            self.keys.remove(key)
            return None
        return ANY_STATE


ANY_STATE = State(*([np.zeros(())] * len(State._fields)))
