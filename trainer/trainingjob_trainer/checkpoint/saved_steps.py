"""The steps in a store: which are committed, which are damaged, and which an interrupted save has left."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trainingjob_agent.checkpoint_layout import (
    FROZEN_FOLDER,
    MANIFEST_FILE,
    QUARANTINE_SUFFIX,
    Writer,
    hash_job,
    parse_step_name,
)
from trainingjob_api.world import World
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import Integrity, ReadRetry, read_integrity
from trainingjob_trainer.checkpoint.older_layout import delete_older_interrupted, delete_older_quarantined
from trainingjob_trainer.checkpoint.step_changes import delete_step, read_quarantined_job
from trainingjob_trainer.checkpoint.step_folders import StepFolder, list_lineages
from trainingjob_trainer.snapshots.lineage import is_in_history
from trainingjob_trainer.store.port import Entry, Store, has_object

MANIFEST_MISSING = f"{MANIFEST_FILE} is missing"


@dataclass(frozen=True)
class SavedStep:
    """A step folder. `integrity` is None where no valid manifest exists.

    `damage` describes the damage that is known. `unreadable` is the error of the store when the manifest was read.
    """

    folder: StepFolder
    integrity: Integrity | None
    damage: str = ""
    unreadable: OSError | None = None  # None: the store reported no error

    @property
    def step(self) -> int:
        """Return the number of the step."""
        return self.folder.step

    @property
    def is_committed(self) -> bool:
        """Return whether the step was committed once. If not, it is what an interrupted save or deletion has left."""
        return bool(self.integrity or self.damage or self.unreadable)


def list_saved(store: Store, read_retry: ReadRetry | None = None) -> list[SavedStep]:
    """Return the steps of all lineages that are not quarantined, oldest first, committed or not.

    `read_retry` retries the read of a manifest; None: no retries.

    Raises:
        OSError: the folders cannot be listed.
    """
    return _list_after(store, -1, read_retry or ReadRetry(0))


def _list_after(store: Store, after: int, read_retry: ReadRetry) -> list[SavedStep]:
    found = (
        _read_step(folder, entry, read_retry)
        for folder, entry, is_quarantined in _list_steps(store)
        if folder.step > after and not is_quarantined
    )
    return sorted(found, key=lambda saved_step: saved_step.step)


def _list_steps(store: Store) -> Iterator[tuple[StepFolder, Entry, bool]]:
    for lineage in list_lineages(store):
        yield from list_step_folders(store, lineage)


def list_step_folders(store: Store, lineage: str) -> Iterator[tuple[StepFolder, Entry, bool]]:
    """Yield what has the name of a step in a lineage, with its entry, and whether it is quarantined.

    Raises:
        OSError: the lineage cannot be listed.
    """
    entries = store.list_folder(lineage)
    names = {entry.name for entry in entries}
    for entry in entries:
        if parse_step_name(entry.name):
            yield StepFolder(store, f"{lineage}/{entry.name}"), entry, entry.name + QUARANTINE_SUFFIX in names


def list_references(store: Store) -> frozenset[str] | None:  # None: a manifest cannot be read
    """Return the folders of frozen tensors to which any committed step refers, quarantined or not.

    Raises:
        OSError: the folders cannot be listed.
    """
    steps = [_read_step(folder, entry, ReadRetry(0)) for folder, entry, _ in _list_steps(store) if entry.is_folder]
    if any(saved_step.damage or saved_step.unreadable for saved_step in steps):
        return None
    return frozenset(
        saved_step.integrity.frozen.folder
        for saved_step in steps
        if saved_step.integrity and saved_step.integrity.frozen
    )


def _read_step(folder: StepFolder, entry: Entry, read_retry: ReadRetry) -> SavedStep:
    """Return the content of a step folder.

    Without a manifest it was never committed, and is no damage. But an older trainer renamed the folder to its name
    together with the manifest, so there it is.
    """
    if not entry.is_folder:
        return SavedStep(folder, None, damage="it is not a folder")
    try:
        record = read_retry.read(lambda: read_integrity(folder))
    except ValueError as error:
        return SavedStep(folder, None, damage=str(error))
    except OSError as error:
        return SavedStep(folder, None, unreadable=error)
    if record is None:
        return SavedStep(folder, None, damage="" if folder.step_name.writer else MANIFEST_MISSING)
    if not _matches_folder(record, folder):
        origin = f"step {record.step} of lineage {record.lineage} and generation {record.generation}"
        return SavedStep(folder, None, damage=f"{MANIFEST_FILE} is that of {origin}")
    return SavedStep(folder, record)


def _matches_folder(record: Integrity, folder: StepFolder) -> bool:
    step, writer = folder.step_name
    is_writer = writer is None or writer[:2] == (hash_job(record.job_uid), record.generation)
    return is_writer and (record.step, record.lineage) == (step, folder.lineage)


def rank_restorable(
    saved: Collection[SavedStep],
    world: World,
    owners: Sequence[str],
    *,
    takeover: bool,
    is_replica: bool = False,
) -> list[SavedStep]:
    """Return the checkpoints that a world may resume from, best first: those of the same job, then the newest.

    A later generation of a whole job has the newest steps. Replicas save in any order of their generations. `owners`
    are the UIDs of the owners of the folder, newest first.
    """

    def rank(record: Integrity) -> tuple[int, ...]:
        return (record.step, record.generation) if is_replica else (record.generation, record.step)

    return [
        saved_step
        for saved_step in rank_saved(saved, (world.job_uid, *owners), rank)
        if (record := saved_step.integrity) and is_in_history(record, world, takeover=takeover, is_replica=is_replica)
    ]


def rank_saved(
    saved: Iterable[SavedStep], owners: Sequence[str], rank: Callable[[Integrity], tuple[int, ...]]
) -> list[SavedStep]:
    """Return the intact steps, best first: those of the newest owner of the folder, each job's by `rank`.

    Generations and lineages of different jobs cannot be compared. A job that takes over quarantines later steps of its
    predecessor. So among jobs that are not in `owners`, the newest owner has the newest step.
    """
    intact = [(record, saved_step) for saved_step in saved if (record := saved_step.integrity)]
    newest: dict[str, int] = {}
    for record, _ in intact:
        newest[record.job_uid] = max(newest.get(record.job_uid, 0), record.step)
    position = {uid: -owners.index(uid) for uid in owners}

    def key(pair: tuple[Integrity, SavedStep]) -> tuple[int, ...]:
        uid = pair[0].job_uid
        return position.get(uid, -len(owners)), newest[uid], *rank(pair[0])

    return [saved_step for _, saved_step in sorted(intact, key=key, reverse=True)]


def delete_quarantined(store: Store, step: int, fence: Fence) -> None:
    """Delete quarantined steps before a step, where their marker or manifest shows that this job saved them.

    Raises:
        OSError: the store refuses the deletion.
    """
    for folder, entry, is_quarantined in _list_steps(store):
        if not is_quarantined or folder.step >= step:
            continue
        saved = _read_step(folder, entry, ReadRetry(0)).integrity
        if (read_quarantined_job(folder) or (saved and saved.job_uid)) == fence.job_uid:
            delete_step(folder, fence)
    delete_older_quarantined(store, step, fence)


def delete_interrupted(store: Store, fence: Fence, *, own: bool = False) -> None:
    """Delete what interrupted saves of earlier worlds and of other jobs have left; with `own`, also this world's.

    A world that is fenced off may still write there. So errors are ignored, and the next call deletes the rest.

    Raises:
        OSError: the folders cannot be listed.
    """
    for folder, _ in _list_abandoned(store, fence, own=own):
        _delete_without_manifest(folder)
    delete_older_interrupted(store)


def delete_own_leftovers(store: Store, fence: Fence) -> None:
    """Delete what failed saves and deletions of this job have left, those of this world included.

    This world must not be saving to the store. Errors are ignored, as in `delete_interrupted`.

    Raises:
        OSError: the folders cannot be listed.
    """
    for folder, writer in _list_abandoned(store, fence, own=True):
        if writer.job == hash_job(fence.job_uid):
            _delete_without_manifest(folder)


def _list_abandoned(store: Store, fence: Fence, *, own: bool) -> list[tuple[StepFolder, Writer]]:
    """Return the folders of steps and of frozen tensors to which no running world writes, committed or not."""
    folders = [*_list_steps(store), *list_step_folders(store, FROZEN_FOLDER)]
    running = fence.find_running()  # after the folders: a world creates its marker before it writes
    return [
        (folder, writer)
        for folder, _, is_quarantined in folders
        if (writer := folder.step_name.writer) and not is_quarantined and _is_abandoned(writer, fence, running, own=own)
    ]


def _delete_without_manifest(folder: StepFolder) -> None:
    with suppress(OSError):
        if not _has_manifest(folder):
            folder.store.delete_tree(folder.name)


def _is_abandoned(writer: Writer, fence: Fence, running: Collection[int], *, own: bool) -> bool:
    if writer.job != hash_job(fence.job_uid):
        return True
    return writer.generation < fence.generation + own and writer.generation not in running


def _has_manifest(folder: StepFolder) -> bool:
    try:
        return has_object(folder.store, folder.file(MANIFEST_FILE))
    except ValueError:  # something else has its place
        return True


def delete_later_steps(store: Store, step: int, fence: Fence) -> list[SavedStep]:
    """Delete a job's own steps after a step, and interrupted saves; return the later steps of other jobs.

    Steps that other replicas have saved meanwhile stay.

    Raises:
        OSError: the store refuses the deletion.
    """
    delete_interrupted(store, fence)
    later = [saved_step for saved_step in _list_after(store, step, ReadRetry(0)) if saved_step.is_committed]
    foreign = [
        saved_step
        for saved_step in later
        if not (saved_step.integrity and saved_step.integrity.job_uid == fence.job_uid)
    ]
    for saved_step in later:
        if saved_step.integrity and saved_step not in foreign and not fence.shares(saved_step.integrity):
            delete_step(saved_step.folder, fence)
    return foreign
