"""The steps that lie below a checkpoint folder: `lineage-<n>/<step>`, with what each says about itself."""

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
"""At the end of the name of a folder that one of Orbax's own checkpointers has not finished."""
UNFINISHED_COPY = ".copying"
"""In the name of a folder on the backup store that is not whole yet."""
LEFT_OVER = re.compile(
    rf"[0-9]+(({re.escape(UNPROVEN)}|{re.escape(UNFINISHED_COPY)})-[0-9]+)?{re.escape(UNFINISHED)}(-[0-9]+)?"
    rf"|[0-9]+({re.escape(UNPROVEN)}|{re.escape(UNFINISHED_COPY)})-[0-9]+({re.escape(VOID)})?"
    rf"|[0-9]+({re.escape(ASIDE)}[0-9]+(-[0-9]+)?)?{re.escape(VOID)}"
)
"""The names of what a save, a copy or a deletion of this project leaves where it is killed."""
NO_RECORD = f"{FILE} is missing"


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
    """Return the folders of all lineages that anything was saved in, oldest first.

    Raises:
        OSError: the folder cannot be read, or that of a lineage is a link: steps would be deleted elsewhere.
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
    """Return the saved steps of all lineages, oldest first, finished or not.

    `patience` with a record that cannot be read; None: there is none.

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
    """Return what a step's folder says. One without a record is damaged: a save gives it its name with its record."""
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
    """Return the steps that a world may go on from, best first: its own job's before another's, then the newest."""
    usable = [
        ((record.job_uid == world.job_uid, record.generation, one.step), one)
        for one in saved
        if (record := one.integrity) and belongs(record, world, takeover=takeover)
    ]
    return [one for _, one in sorted(usable, key=lambda pair: pair[0], reverse=True)]


def delete_aside(root: Path, step: int, job_uid: str) -> None:
    """Delete what was set aside of steps before one, where its record shows that a job has saved it.

    Raises:
        OSError: storage refuses it.
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
    """Delete a job's own steps after one, and all that was never finished; return what others have put there.

    Raises:
        OSError: storage refuses it.
    """
    for folder in (one for lineage in list_lineages(root) for one in lineage.iterdir()):
        if LEFT_OVER.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)  # who is cut off may still be writing there
    later = _list_after(root, step, Patience(0))
    foreign = [one for one in later if not (one.integrity and one.integrity.job_uid == job_uid)]
    for one in later:
        if one not in foreign:
            delete_step(one.folder)
    return foreign
