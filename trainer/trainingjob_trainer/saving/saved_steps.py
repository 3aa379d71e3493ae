"""The steps that lie below a checkpoint folder: `lineage-<n>/<step>`, with what each says about itself."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.world import World
from trainingjob_trainer.history import belongs
from trainingjob_trainer.saving.commit import UNPROVEN, delete_step
from trainingjob_trainer.saving.integrity import FILE, Integrity, Patience, read_integrity

LINEAGE = "lineage-"
UNFINISHED = ".orbax-checkpoint-tmp"
"""At the end of the name of a folder that one of Orbax's own checkpointers has not finished."""
UNFINISHED_COPY = ".copying"
"""In the name of a folder on the backup store that is not whole yet."""
ASIDE = ".damaged-"
"""In the name of a step that was set aside, before the number of the generation that found the damage."""


@dataclass(frozen=True)
class Saved:
    """A step's folder. `integrity` is None where nothing can be told from it.

    `damage` says what is known to be wrong. `unreadable` is what storage said when it was asked for the record.
    """

    step: int
    folder: Path
    integrity: Integrity | None
    damage: str = ""
    unreadable: OSError | None = None  # None: it said nothing


def lineage_folder(root: Path, number: int) -> Path:
    """Return where the steps of a lineage are saved."""
    return root / f"{LINEAGE}{number}"


def list_lineages(root: Path) -> list[Path]:
    """Return the folders of all lineages that anything was saved in, oldest first."""
    folders = (folder for folder in root.glob(f"{LINEAGE}*") if folder.name.removeprefix(LINEAGE).isdigit())
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix(LINEAGE)))


def list_saved(root: Path, patience: Patience | None = None) -> list[Saved]:
    """Return the saved steps of all lineages, oldest first, finished or not.

    `patience` with a record that cannot be read; None: there is none.

    Raises:
        OSError: the folders cannot be listed.
    """
    patience = patience or Patience(0)
    folders = [one for lineage in list_lineages(root) for one in lineage.iterdir() if one.name.isdigit()]
    return sorted((_look(folder, patience) for folder in folders), key=lambda one: one.step)


def _look(folder: Path, patience: Patience) -> Saved:
    step = int(folder.name)
    try:
        record = patience.read(lambda: read_integrity(folder))
    except ValueError as error:
        return Saved(step, folder, None, damage=str(error))
    except OSError as error:
        return Saved(step, folder, None, unreadable=error)
    if record and (record.step, lineage_folder(folder.parent.parent, record.lineage)) != (step, folder.parent):
        return Saved(step, folder, None, damage=f"{FILE} is that of step {record.step} of lineage {record.lineage}")
    return Saved(step, folder, record)


def rank(saved: Iterable[Saved], world: World, *, takeover: bool) -> list[Saved]:
    """Return the steps that a world may go on from, best first: its own job's before another's, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and belongs(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


def set_aside(folder: Path, generation: int) -> None:
    """Rename a damaged step, so that it is no step any more and can still be looked at.

    Raises:
        OSError: storage refuses it.
    """
    aside = folder.with_name(f"{folder.name}{ASIDE}{generation}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def delete_aside(root: Path, step: int) -> None:
    """Delete what was set aside of steps before one.

    Raises:
        OSError: storage refuses it.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.glob(f"*{ASIDE}*")):
        number = folder.name.partition(ASIDE)[0]
        if number.isdigit() and int(number) < step:
            shutil.rmtree(folder)


def clear_after(root: Path, step: int) -> None:
    """Delete the steps after one, and all that was never finished.

    Raises:
        OSError: storage refuses it.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        if any(mark in folder.name for mark in (UNPROVEN, UNFINISHED, UNFINISHED_COPY)):
            shutil.rmtree(folder, ignore_errors=True)  # who is cut off may still be writing there
        elif folder.name.isdigit() and int(folder.name) > step:
            delete_step(folder)
