"""The checkpoints below a checkpoint folder: `lineage-<n>/<step>`, each with its integrity manifest."""

import errno
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainingjob_agent.shared_files import MANIFEST_FILE, parse_number
from trainingjob_api.world import World
from trainingjob_trainer.checkpoint.commit import DELETING_SUFFIX, QUARANTINE_SUFFIX, UNCOMMITTED_SUFFIX, delete_step
from trainingjob_trainer.checkpoint.manifest import Integrity, ReadRetry, read_integrity
from trainingjob_trainer.snapshots.lineage import is_in_history

LINEAGE = "lineage-"
ORBAX_TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
"""Suffix of a folder that one of Orbax's own checkpointers has not finished."""
COPYING_SUFFIX = ".copying"
"""Suffix of an incomplete copy on the backup store."""
LEFTOVER_NAME = re.compile(
    rf"[0-9]+(({re.escape(UNCOMMITTED_SUFFIX)}|{re.escape(COPYING_SUFFIX)})-[0-9]+)?{re.escape(ORBAX_TEMPORARY_SUFFIX)}(-[0-9]+)?"
    rf"|[0-9]+({re.escape(UNCOMMITTED_SUFFIX)}|{re.escape(COPYING_SUFFIX)})-[0-9]+({re.escape(DELETING_SUFFIX)})?"
    rf"|[0-9]+({re.escape(QUARANTINE_SUFFIX)}[0-9]+(-[0-9]+)?)?{re.escape(DELETING_SUFFIX)}"
)
"""Names of the folders that an interrupted save, copy or deletion of this project leaves."""
MANIFEST_MISSING = f"{MANIFEST_FILE} is missing"


@dataclass(frozen=True)
class SavedStep:
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


def list_saved(root: Path, patience: ReadRetry | None = None) -> list[SavedStep]:
    """Return the checkpoints of all lineages, oldest first, complete or not.

    `patience` retries the read of a manifest; None: no retries.

    Raises:
        OSError: the folders cannot be listed.
    """
    return _list_after(root, -1, patience or ReadRetry(0))


def _list_after(root: Path, after: int, patience: ReadRetry) -> list[SavedStep]:
    folders = (folder for lineage in list_lineages(root) for folder in lineage.iterdir())
    numbered = [(step, folder) for folder in folders if (step := parse_number(folder.name)) is not None]
    return sorted(
        (_read_step(step, folder, patience) for step, folder in numbered if step > after), key=lambda one: one.step
    )


def _read_step(step: int, folder: Path, patience: ReadRetry) -> SavedStep:
    """Return the content of a step folder. A folder without a manifest is damaged: a save renames both together."""
    if folder.is_symlink() or not folder.is_dir():
        return SavedStep(step, folder, None, damage="it is not a folder")
    try:
        record = patience.read(lambda: read_integrity(folder))
    except ValueError as error:
        return SavedStep(step, folder, None, damage=str(error))
    except OSError as error:
        return SavedStep(step, folder, None, unreadable=error)
    if record is None:
        return SavedStep(step, folder, None, damage=MANIFEST_MISSING)
    if not _matches_folder(record, step, folder.parent):
        return SavedStep(
            step, folder, None, damage=f"{MANIFEST_FILE} is that of step {record.step} of lineage {record.lineage}"
        )
    return SavedStep(step, folder, record)


def _matches_folder(record: Integrity, step: int, lineage: Path) -> bool:
    return (record.step, lineage_folder(lineage.parent, record.lineage)) == (step, lineage)


def rank_restorable(saved: Iterable[SavedStep], world: World, *, takeover: bool) -> list[SavedStep]:
    """Return the checkpoints that a world may resume from, best first: those of its own job, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and is_in_history(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


def delete_quarantined(root: Path, step: int, job_uid: str) -> None:
    """Delete quarantined steps before a step, where their manifest shows that this job saved them.

    Raises:
        OSError: storage refuses the deletion.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.glob(f"*{QUARANTINE_SUFFIX}*")):
        number = parse_number(folder.name.partition(QUARANTINE_SUFFIX)[0])
        if number is None or number >= step or folder.is_symlink() or not folder.is_dir():
            continue
        with suppress(ValueError):
            record = read_integrity(folder)
            if record and record.job_uid == job_uid and _matches_folder(record, number, folder.parent):
                delete_step(folder)


def delete_later_steps(root: Path, step: int, job_uid: str) -> list[SavedStep]:
    """Delete a job's own steps after a step, and all temporary folders; return the later steps of other jobs.

    Raises:
        OSError: storage refuses the deletion.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        if LEFTOVER_NAME.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)  # a world that is fenced off may still write there
    later = _list_after(root, step, ReadRetry(0))
    foreign = [one for one in later if not (one.integrity and one.integrity.job_uid == job_uid)]
    for one in later:
        if one not in foreign:
            delete_step(one.folder)
    return foreign
