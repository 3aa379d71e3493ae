"""The checkpoints below a checkpoint folder: `lineage-<n>/<step>`, each with its integrity manifest."""

import errno
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.world import World
from trainingjob_trainer.files import parse_number
from trainingjob_trainer.history import belongs
from trainingjob_trainer.saving.commit import ASIDE, UNPROVEN, VOID, delete_step
from trainingjob_trainer.saving.integrity import FILE, Integrity, Patience, read_integrity

LINEAGE = "lineage-"
UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix of a folder that one of Orbax's own checkpointers has not finished."""
UNFINISHED_COPY = ".copying"
"""Suffix of an incomplete copy on the backup store."""
LEFT_OVER = re.compile(
    rf"[0-9]+(({re.escape(UNPROVEN)}|{re.escape(UNFINISHED_COPY)})-[0-9]+)?{re.escape(UNFINISHED)}(-[0-9]+)?"
    rf"|[0-9]+({re.escape(UNPROVEN)}|{re.escape(UNFINISHED_COPY)})-[0-9]+({re.escape(VOID)})?"
    rf"|[0-9]+({re.escape(ASIDE)}[0-9]+(-[0-9]+)?)?{re.escape(VOID)}"
)
"""Names of the folders that an interrupted save, copy or deletion of this project leaves."""
NO_RECORD = f"{FILE} is missing"


@dataclass(frozen=True)
class Saved:
    """A step folder. `integrity` is None where no valid manifest exists.

    `damage` describes the damage that is known. `unreadable` is the error of storage when the manifest was read.
    """

    step: int
    folder: Path
    integrity: Integrity | None
    damage: str = ""
    unreadable: OSError | None = None  # None: storage reported no error


def lineage_folder(root: Path, number: int) -> Path:
    """Return the folder of a lineage's steps."""
    return root / f"{LINEAGE}{number}"


def list_lineages(root: Path) -> list[Path]:
    """Return the folders of all lineages, oldest first.

    Raises:
        OSError: the folder cannot be read, or a lineage folder is a link: steps would be deleted elsewhere.
    """
    folders = [
        (number, folder)
        for folder in root.glob(f"{LINEAGE}*")
        if (number := parse_number(folder.name.removeprefix(LINEAGE))) is not None
    ]
    for _, folder in folders:
        if folder.is_symlink() or not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} must be a folder itself, not a link or a file")
    return [folder for _, folder in sorted(folders)]


def list_saved(root: Path, patience: Patience | None = None) -> list[Saved]:
    """Return the checkpoints of all lineages, oldest first, complete or not.

    `patience` retries the read of a manifest; None: no retries.

    Raises:
        OSError: the folders cannot be listed.
    """
    return _list_after(root, -1, patience or Patience(0))


def _list_after(root: Path, least: int, patience: Patience) -> list[Saved]:
    folders = (folder for lineage in list_lineages(root) for folder in lineage.iterdir())
    numbered = [(step, folder) for folder in folders if (step := parse_number(folder.name)) is not None]
    return sorted(
        (_look(step, folder, patience) for step, folder in numbered if step > least), key=lambda one: one.step
    )


def _look(step: int, folder: Path, patience: Patience) -> Saved:
    """Return the content of a step folder. A folder without a manifest is damaged: a save renames both together."""
    if folder.is_symlink() or not folder.is_dir():
        return Saved(step, folder, None, damage="it is not a folder")
    try:
        record = patience.read(lambda: read_integrity(folder))
    except ValueError as error:
        return Saved(step, folder, None, damage=str(error))
    except OSError as error:
        return Saved(step, folder, None, unreadable=error)
    if record is None:
        return Saved(step, folder, None, damage=NO_RECORD)
    if not _is_at_home(record, step, folder.parent):
        return Saved(step, folder, None, damage=f"{FILE} is that of step {record.step} of lineage {record.lineage}")
    return Saved(step, folder, record)


def _is_at_home(record: Integrity, step: int, lineage: Path) -> bool:
    return (record.step, lineage_folder(lineage.parent, record.lineage)) == (step, lineage)


def rank(saved: Iterable[Saved], world: World, *, takeover: bool) -> list[Saved]:
    """Return the checkpoints that a world may resume from, best first: those of its own job, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and belongs(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


def delete_aside(root: Path, step: int, job_uid: str) -> None:
    """Delete quarantined steps before a step, where their manifest shows that this job saved them.

    Raises:
        OSError: storage refuses the deletion.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.glob(f"*{ASIDE}*")):
        number = parse_number(folder.name.partition(ASIDE)[0])
        if number is None or number >= step or folder.is_symlink() or not folder.is_dir():
            continue
        with suppress(ValueError):
            record = read_integrity(folder)
            if record and record.job_uid == job_uid and _is_at_home(record, number, folder.parent):
                delete_step(folder)


def clear_after(root: Path, step: int, job_uid: str) -> list[Saved]:
    """Delete a job's own steps after a step, and all temporary folders; return the later steps of other jobs.

    Raises:
        OSError: storage refuses the deletion.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        if LEFT_OVER.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)  # a world that is fenced off may still write there
    later = _list_after(root, step, Patience(0))
    foreign = [one for one in later if not (one.integrity and one.integrity.job_uid == job_uid)]
    for one in later:
        if one not in foreign:
            delete_step(one.folder)
    return foreign
