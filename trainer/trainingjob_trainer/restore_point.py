"""Which saved step a new world goes on from: the newest one of the job's history that proves whole.

A damaged step is reported, moved aside and passed over. When damage leaves nothing, the job fails: it never starts from
scratch in silence.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.protocol import Damage, FailureReason
from trainingjob_api.world import World
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.history import belongs
from trainingjob_trainer.integrity import Integrity, find_damage, read_integrity, share
from trainingjob_trainer.wire import Event
from trainingjob_trainer.world import Peers

VERIFY_SECONDS = 1800


@dataclass(frozen=True)
class Saved:
    """A step's folder. `integrity` is None where the save never finished, `damage` says what is known to be wrong."""

    step: int
    folder: Path
    integrity: Integrity | None
    damage: str = ""


def list_saved(lineage: Path) -> list[Saved]:
    """Return the steps in a lineage's folder, oldest first, finished or not."""
    saved = []
    for folder in lineage.iterdir() if lineage.exists() else ():
        if folder.name.isdigit():
            try:
                saved.append(Saved(int(folder.name), folder, read_integrity(folder)))
            except ValueError as error:
                saved.append(Saved(int(folder.name), folder, None, str(error)))
    return sorted(saved, key=lambda one: one.step)


def rank(saved: Iterable[Saved], world: World, *, takeover: bool) -> list[Saved]:
    """Return the steps that a world may go on from, best first: its own job's before another's, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and belongs(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


class RestorePoint:
    """The search for the step to restore, made by all processes of a world together."""

    def __init__(self, lineage: Path, world: World, peers: Peers, events: Events, *, takeover: bool) -> None:
        self._lineage = lineage
        self._world = world
        self._peers = peers
        self._events = events
        self._takeover = takeover
        self._damaged: list[Damage] = []

    def find(self, data: str, state: str) -> Path | None:  # None: start from scratch
        """Return the folder of the newest whole step, and clear away what no history needs.

        `data` is the identity of the job's index, `state` the hash of its state's shapes.

        Raises:
            TrainingError: every step is damaged, or the step is of other data or of another model.
        """
        attempt = 0
        while True:
            choice = self._choose(data, state) if self._peers.process == 0 else ""
            choice = self._peers.exchange(f"restore/{attempt}", choice, VERIFY_SECONDS)[0]
            if not choice:
                return None
            folder = self._lineage / choice
            texts = self._peers.exchange(f"verify/{attempt}", self._verify(folder), VERIFY_SECONDS)
            damage = next(filter(None, texts), "")
            if not damage:
                if self._peers.process == 0:
                    self._clear_after(int(choice))
                self._peers.wait(f"verified/{attempt}", VERIFY_SECONDS)
                return folder
            if self._peers.process == 0:
                self._set_aside(int(choice), folder, damage)
            attempt += 1

    def _choose(self, data: str, state: str) -> str:
        """Return the name of the best step left; empty: there is none, and none is missing."""
        saved = list_saved(self._lineage)
        for one in saved:
            if one.damage:
                self._set_aside(one.step, one.folder, one.damage)
        best = next(iter(rank(saved, self._world, takeover=self._takeover)), None)
        if best and best.integrity:
            if best.integrity.data != data:
                raise TrainingError(
                    FailureReason.DATA,
                    f"step {best.step} was trained on other rows (index {best.integrity.data[:12]}) than this spec "
                    f"gives ({data[:12]}): text, tokenizer or sequence length differ. Give the job the same data, or "
                    "another checkpoint folder.",
                    path="spec.data.train",
                    value=data[:12],
                )
            if best.integrity.state != state:
                raise TrainingError(
                    FailureReason.CONFIG,
                    f"step {best.step} holds the state of another model. The sections model and precision must be "
                    "those that it was trained with, or the job needs another checkpoint folder.",
                    path="spec.model",
                )
            return best.folder.name
        restored_before = max((span.first - 1 for span in self._world.lineage), default=0)
        if self._damaged or restored_before:
            damage = "; ".join(f"step {one.step}: {one.message}" for one in self._damaged)
            raise TrainingError(
                FailureReason.STORAGE,
                f"no saved step in {self._lineage} is whole, so there is nothing to go on from"
                + (f" ({damage})." if damage else f", though step {restored_before} was restored before.")
                + " Bring the folder back from a copy, or start a new job from scratch in another folder.",
                path="spec.checkpoint.uri",
                value=self._lineage.parent,
            )
        self._clear_after(0)
        return ""

    def _verify(self, folder: Path) -> str:
        """Return what is wrong with this process's share of a step's files; empty: nothing."""
        try:
            integrity = read_integrity(folder)
        except ValueError as error:
            return str(error)
        if integrity is None:
            return "integrity.json is not there on every host: is the folder on storage that all hosts share?"
        names = share(sorted(integrity.files), self._peers.process, self._peers.num_processes)
        return find_damage(folder, {name: integrity.files[name] for name in names})

    def _set_aside(self, step: int, folder: Path, message: str) -> None:
        damage = Damage(step=step, message=message)
        self._damaged.append(damage)
        aside = folder.with_name(f"{folder.name}.damaged-{self._world.generation}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        self._events.send(Event(damaged=damage))

    def _clear_after(self, step: int) -> None:
        """Delete later steps, which no history holds, and unfinished saves: training is about to write them anew."""
        for folder in self._lineage.iterdir() if self._lineage.exists() else ():
            if ".orbax-checkpoint-tmp" in folder.name or (folder.name.isdigit() and int(folder.name) > step):
                delete_step(folder)


def delete_step(folder: Path) -> None:
    """Delete a step so that no half of it can pass for a whole one."""
    (folder / "integrity.json").unlink(missing_ok=True)
    shutil.rmtree(folder)
