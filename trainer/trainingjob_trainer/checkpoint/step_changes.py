"""Changes of a step in a store: how it is claimed, committed, quarantined and deleted. Nothing is renamed.

A step is committed by its last object, the integrity manifest, and excluded by an object beside its folder. Both are
one write, so each happens completely or not at all. A deletion removes the manifest first: half a step is no step.
"""

import json
from contextlib import suppress

from trainingjob_agent.checkpoint_layout import (
    FROZEN_FOLDER,
    MANIFEST_FILE,
    QUARANTINE_SUFFIX,
    WRITER_FILE,
    StepName,
    Writer,
    hash_job,
    lineage_folder,
)
from trainingjob_agent.shared_files import parse_untrusted_json
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.store.port import Store

MAX_MARKER_BYTES = 1 << 16
MAX_REASON = 1024


def new_step_folder(store: Store, lineage: int, step: int, fence: Fence, save: int) -> StepFolder:
    """Return the folder into which a world saves a step, the same on all its processes. Nothing is created.

    `save` is the number of the save in this world.
    """
    return StepFolder(store, f"{lineage_folder(lineage)}/{_name_save(step, fence, save)}")


def new_frozen_folder(store: Store, step: int, fence: Fence, save: int) -> StepFolder:
    """Return the folder into which the save of a step writes frozen tensors, likewise."""
    return StepFolder(store, f"{FROZEN_FOLDER}/{_name_save(step, fence, save)}")


def _name_save(step: int, fence: Fence, save: int) -> StepName:
    return StepName(step, Writer(hash_job(fence.job_uid), fence.generation, save))


def claim_step(folder: StepFolder, fence: Fence) -> None:
    """Create the first object of a step, before any process writes to the folder.

    Raises:
        FileExistsError: the folder has a writer.
        OSError: the store refuses the write.
    """
    writer = {"job_uid": fence.job_uid, "generation": fence.generation, "step": folder.step}
    folder.store.create_exclusive(folder.file(WRITER_FILE), json.dumps(writer).encode())


def quarantine_step(folder: StepFolder, generation: int, reason: str, saved_by: str = "") -> None:
    """Exclude a step: it can still be inspected. `saved_by` is the UID of the job that saved it; empty: unknown.

    Raises:
        OSError: the store refuses the write.
    """
    marker = {"generation": generation, "reason": reason[:MAX_REASON], "job_uid": saved_by}
    with suppress(FileExistsError):  # another world has found the same
        folder.store.create_exclusive(folder.name + QUARANTINE_SUFFIX, json.dumps(marker).encode() + b"\n")


def read_quarantined_job(folder: StepFolder) -> str:
    """Return the UID of the job that saved a quarantined step; empty: unknown.

    Raises:
        OSError: the store does not respond.
    """
    name = folder.name + QUARANTINE_SUFFIX
    with suppress(ValueError):
        match parse_untrusted_json(name, folder.store.read(name, MAX_MARKER_BYTES)):
            case {"job_uid": str(uid)}:
                return uid
    return ""


def delete_step(folder: StepFolder, fence: Fence) -> None:
    """Delete a step that the job of `fence` saved, committed or not.

    An older trainer wrote its manifest with all other files, so half of such a step would count as damaged. The step is
    therefore quarantined first.

    Raises:
        OSError: the store refuses the deletion. The step is then no saved step any more, or unchanged.
    """
    if folder.step_name.writer is None:
        quarantine_step(folder, fence.generation, "it is being deleted", fence.job_uid)
    folder.store.delete(folder.file(MANIFEST_FILE))
    folder.store.delete_tree(folder.name)
    folder.store.delete(folder.name + QUARANTINE_SUFFIX)
