"""Which saved step a new world goes on from: the newest one of the job's history that proves whole.

Copies on the backup store, and snapshots in the hosts' memory, are judged by the same rule, and the newest of all is
taken. Where they are of the same step, that is the snapshot, for it is there already, and the copy last.

A damaged step is reported, moved aside and passed over. When damage leaves nothing, the job fails: it never starts from
scratch in silence.
"""

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainingjob_api.protocol import Damage, FailureReason
from trainingjob_api.world import ON_STORAGE, World
from trainingjob_trainer.commit import UNFINISHED
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.history import Past, belongs, is_of_known_lineage
from trainingjob_trainer.integrity import FILE, Integrity, find_damage, read_integrity, share
from trainingjob_trainer.signature import State
from trainingjob_trainer.snapshot_files import Key
from trainingjob_trainer.wire import Event
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
VERIFY_SECONDS = 1800
LINEAGE = "lineage-"
FROM_MEMORY = "memory"
"""What is said in place of a step's name where the snapshot is newer."""
UNFINISHED_COPY = ".copying"
"""In the name of a folder on the backup store that is not whole yet."""
NO_RECORD = f"{FILE} is missing"
GONE = "it is not there any more"


class Memory(Protocol):
    """The snapshots that the hosts of a world hold together."""

    @property
    def newest(self) -> Key | None: ...  # noqa: D102  # None: no snapshot is whole

    def load(self, key: Key) -> State | None: ...  # noqa: D102  # None: it is damaged, and never offered again
    def past(self, key: Key) -> Past: ...  # noqa: D102


@dataclass(frozen=True)
class Recalled:
    """A state that was found in the hosts' memory."""

    key: Key
    state: State
    past: Past


@dataclass(frozen=True)
class Saved:
    """A step's folder. `integrity` is None where the save never finished, `damage` says what is known to be wrong."""

    step: int
    folder: Path
    integrity: Integrity | None
    damage: str = ""


def lineage_folder(root: Path, number: int) -> Path:
    """Return where the steps of a lineage are saved."""
    return root / f"{LINEAGE}{number}"


def list_lineages(root: Path) -> list[Path]:
    """Return the folders of all lineages that anything was saved in, oldest first."""
    folders = (folder for folder in root.glob(f"{LINEAGE}*") if folder.name.removeprefix(LINEAGE).isdigit())
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix(LINEAGE)))


def list_saved(root: Path) -> list[Saved]:
    """Return the saved steps of all lineages, oldest first, finished or not."""
    saved = []
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        if folder.name.isdigit():
            try:
                saved.append(Saved(int(folder.name), folder, read_integrity(folder)))
            except ValueError as error:
                saved.append(Saved(int(folder.name), folder, None, str(error)))
    return sorted(saved, key=lambda one: one.step)


def find_newest_generation(saved: Iterable[Saved], world: World) -> int:
    """Return the highest generation of a world's job that has saved a step; 0: none has."""
    records = (one.integrity for one in saved if one.integrity)
    return max((record.generation for record in records if record.job_uid == world.job_uid), default=0)


def rank(saved: Iterable[Saved], world: World, *, takeover: bool) -> list[Saved]:
    """Return the steps that a world may go on from, best first: its own job's before another's, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and belongs(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


class RestorePoint:
    """The search for the step to restore below `root`, or `backup`, made by all processes of a world together."""

    def __init__(
        self,
        root: Path,
        world: World,
        peers: Peers,
        events: Events,
        memory: Memory | None = None,
        *,
        takeover: bool,
        backup: Path | None = None,
        readers: Sequence[int] | None = None,  # None: all processes read
    ) -> None:
        self._readers = readers
        self._root = root
        self._backup = backup
        self._memory = memory
        self._world = world
        self._peers = peers
        self._events = events
        self._takeover = takeover
        self._damaged: list[Damage] = []

    def find(self, data: str, states: Collection[str]) -> Path | Recalled | None:  # None: start from scratch
        """Return the newest whole step, its folder or its state, and clear away what no history needs.

        `data` is the identity of the job's index, `states` the hashes of the shapes that its state may have had.

        Raises:
            TrainingError: every step is damaged, or the step is of other data or of another model.
        """
        attempt = 0
        while True:
            snapshot = self._memory.newest if self._memory else None
            choice = self._agree(attempt, data, states, snapshot)
            if not choice:
                return None
            if choice == FROM_MEMORY:
                assert self._memory is not None  # noqa: S101  # process 0 has found it there
                assert snapshot is not None  # noqa: S101  # and all find the same one
                if loaded := self._memory.load(snapshot):
                    if self._peers.process == 0:
                        self._clear_after(snapshot[1])
                    self._peers.wait(f"recalled/{attempt}", VERIFY_SECONDS)
                    return Recalled(snapshot, loaded, self._memory.past(snapshot))
                attempt += 1
                continue
            folder = Path(choice)
            texts = self._peers.exchange(
                f"verify/{attempt}", verify(folder, self._peers, self._readers), VERIFY_SECONDS
            )
            damage = next(filter(None, texts), "")
            if not damage:
                if self._peers.process == 0:
                    self._clear_after(int(folder.name))
                self._peers.wait(f"verified/{attempt}", VERIFY_SECONDS)
                return folder
            self._tell(int(folder.name), self._where(folder) + damage)
            if self._peers.process == 0:
                self._set_aside(folder)
            attempt += 1

    def _agree(self, attempt: int, data: str, states: Collection[str], snapshot: Key | None) -> str:
        """Return what process 0 chooses, on all processes, after all told what it found damaged."""
        said = ""
        if self._peers.process == 0:
            known = len(self._damaged)
            said = json.dumps(
                [self._choose(data, states, snapshot), [(one.step, one.message) for one in self._damaged[known:]]]
            )
        choice, damaged = json.loads(self._peers.exchange(f"restore/{attempt}", said, VERIFY_SECONDS)[0])
        if self._peers.process != 0:
            for step, message in damaged:
                self._tell(step, message)
        return str(choice)

    def _choose(self, data: str, states: Collection[str], snapshot: Key | None) -> str:
        """Return the best step's folder, or `FROM_MEMORY`; empty: there is none, and none is missing."""
        saved, copied = list_saved(self._root), self._list_copies()
        for one in (*saved, *copied):
            if one.damage:
                self._tell(one.step, self._where(one.folder) + one.damage)
                self._set_aside(one.folder)
        best = next(iter(rank((*saved, *copied), self._world, takeover=self._takeover)), None)
        if self._world.committed > (best.step if best else 0):
            self._tell_of_lost(
                [one for one in saved if one.step == self._world.committed], is_all=not (best or snapshot)
            )
        if best and best.integrity:
            if not is_of_known_lineage(best.integrity, self._world):
                raise TrainingError(
                    FailureReason.STORAGE,
                    f"step {best.step} is of lineage {best.integrity.lineage}, of which this world does not know: "
                    "status.rollbacks of the job was lost, and with it which samples are left out. Give the folder to "
                    "a new job with `checkpoint.takeover: true`: it goes on from there, without them.",
                    path="spec.checkpoint.uri",
                    value=self._root,
                )
            if best.integrity.data != data:
                raise TrainingError(
                    FailureReason.DATA,
                    f"step {best.step} was trained on other rows (index {best.integrity.data[:12]}) than this spec "
                    f"gives ({data[:12]}): text, tokenizer or sequence length differ. Give the job the same data, or "
                    "another checkpoint folder.",
                    path="spec.data.train",
                    value=data[:12],
                )
            if best.integrity.state not in states:
                raise TrainingError(
                    FailureReason.CONFIG,
                    f"step {best.step} holds the state of another model. The sections model and precision, and "
                    "protection.spikes where there was one, must be those that it was trained with, or the job needs "
                    "another checkpoint folder.",
                    path="spec.model",
                )
            if snapshot is None or snapshot < self._rate(best.integrity):
                return str(best.folder)
        if snapshot is not None:
            return FROM_MEMORY
        self._refuse_scratch()
        self._clear_after(0)
        return ""

    def _tell_of_lost(self, there: list[Saved], *, is_all: bool) -> None:
        """Tell that the step that was known to be saved is not whole, though no file of it shows that."""
        unproven = [one for one in there if not (one.integrity or one.damage)]
        for one in unproven:
            self._tell(one.step, NO_RECORD)
            self._set_aside(one.folder)
        is_told = any(one.step == self._world.committed for one in self._damaged)
        if not (there or is_told or is_all):  # where nothing is left at all, the failure tells it
            self._tell(self._world.committed, GONE)

    def _refuse_scratch(self) -> None:
        """Raise where a step was once saved: then something is missing, and to begin anew would hide it."""
        restored = max((span.first - 1 for span in self._world.lineage if span.tier in ON_STORAGE), default=0)
        parents = [rollback.parent for rollback in self._world.rollbacks[-1:]]
        known = max(restored, self._world.committed, *parents)
        if not (self._damaged or known):
            return
        damage = "; ".join(f"step {one.step}: {one.message}" for one in self._damaged)
        where = f"{self._root} or {self._backup}" if self._backup else str(self._root)
        missing = f", though step {known} was {'restored' if known == restored else 'saved'} before."
        raise TrainingError(
            FailureReason.STORAGE,
            f"no saved step in {where} is whole, so there is nothing to go on from"
            + (f" ({damage})." if damage else missing)
            + " Bring the folder back from a copy, or start a new job from scratch in another folder.",
            path="spec.checkpoint.uri",
            value=self._root,
        )

    def _rate(self, saved: Integrity) -> Key:
        """Return by which a step is newer than a snapshot; another job's is older than all of our own."""
        return (saved.generation if saved.job_uid == self._world.job_uid else 0), saved.step

    def _tell(self, step: int, message: str) -> None:
        """Tell of a damaged step, as all do: whoever is heard first tells it with what training goes on from."""
        damage = Damage(step=step, message=message)
        self._damaged.append(damage)
        self._events.send(Event(damaged=damage))

    def _set_aside(self, folder: Path) -> None:
        aside = folder.with_name(f"{folder.name}.damaged-{self._world.generation}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)

    def _clear_after(self, step: int) -> None:
        """Delete later steps, which no history holds, and unfinished saves: training is about to write them anew."""
        _clear_after(self._root, step)
        if self._backup:
            try:
                _clear_after(self._backup, step)
            except OSError as error:  # no reader takes them
                LOG.warning("later copies cannot be deleted error=%s", error)

    def _list_copies(self) -> list[Saved]:
        """Return the steps on the backup store; none where it does not answer: it is not what training goes on with."""
        try:
            return list_saved(self._backup) if self._backup else []
        except OSError as error:
            LOG.warning("the backup folder cannot be read error=%s", error)
            return []

    def _where(self, folder: Path) -> str:
        """Return what is said before what is wrong with a copy. Empty: it is a saved step itself."""
        is_copy = self._backup is not None and folder.is_relative_to(self._backup)
        return f"its copy in {self._backup}: " if is_copy else ""


def verify(folder: Path, peers: Peers, readers: Sequence[int] | None = None) -> str:
    """Return what is wrong with this process's share of a step's files; empty: nothing.

    `readers` are the processes that share them out, by default all of them.
    """
    readers = range(peers.num_processes) if readers is None else readers
    if peers.process not in readers:
        return ""
    try:
        integrity = read_integrity(folder)
    except ValueError as error:
        return str(error)
    if integrity is None:
        return "integrity.json is not there on every host: is the folder on storage that all hosts share?"
    names = share(sorted(integrity.files), readers.index(peers.process), len(readers))
    return find_damage(folder, {name: integrity.files[name] for name in names})


def _clear_after(root: Path, step: int) -> None:
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        is_unfinished = UNFINISHED in folder.name or UNFINISHED_COPY in folder.name
        if is_unfinished or (folder.name.isdigit() and int(folder.name) > step):
            delete_step(folder)


def delete_step(folder: Path) -> None:
    """Delete a step so that no half of it can pass for a whole one."""
    (folder / "integrity.json").unlink(missing_ok=True)
    shutil.rmtree(folder)
