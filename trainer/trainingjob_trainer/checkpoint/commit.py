"""Commits of checkpoints: all processes write, hash and verify a step, then process 0 renames it into place.

A step is written under a name that no other world uses, and renamed only once its integrity manifest is beside it. So a
step exists completely or not at all, and no other world can have written a part of it.

After each stage, all processes exchange their errors and act on the same answers. So an error of storage on one host
fails the save on all hosts. No process waits for a host that has given up or counts an incomplete step as saved. And
all processes know the result before the next save begins.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from trainingjob_trainer.checkpoint.error_exchange import ErrorExchange, SaveFailedError, describe_error
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import (
    Integrity,
    RateLimit,
    dump_file_hashes,
    hash_files,
    list_files,
    merge_file_hashes,
    read_integrity,
    select_share,
    write_integrity,
)
from trainingjob_trainer.checkpoint.orbax_writer import OrbaxWriter, PendingWrite
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup

LOG = logging.getLogger(__name__)
COMMIT_SECONDS = 1800
UNCOMMITTED_SUFFIX = ".saving"
"""Suffix of a folder that is being written and hashed; the generation of its writer follows."""
DELETING_SUFFIX = ".void"
"""Suffix of a step that is about to be deleted."""
QUARANTINE_SUFFIX = ".damaged-"
"""Suffix of a quarantined step; the generation that found the damage follows."""


class Committer:
    """Writes steps with Orbax, one at a time, as one process of a world. `name` is the host in messages."""

    def __init__(self, peers: ProcessGroup, name: str, fence: Fence) -> None:
        self._peers = peers
        self._fence = fence
        self._votes = ErrorExchange(peers, name, "save", COMMIT_SECONDS)
        self._pace = RateLimit()
        self.orbax = OrbaxWriter(peers)

    def begin(self, folder: Path, state: Mapping[str, Any]) -> PendingWrite:
        """Copy the arrays of a state, which may be donated afterwards; `finish` writes them into a folder.

        Training is blocked here, so this method does not wait for any other process.
        """
        self._pace.enable()
        return self.orbax.copy(self._temporary_folder(folder), state)

    def finish(self, folder: Path, writing: PendingWrite, record: Integrity) -> Integrity:
        """Write a copied state, hash its files, each host its share, and write the manifest with the hashes.

        All processes return the manifest.

        Raises:
            SaveFailedError: a stage failed on a host; the partial step is deleted.
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        self._votes.begin()
        try:
            return self._commit_in_stages(folder, writing, record)
        except SaveFailedError:
            if self._peers.process == 0:
                shutil.rmtree(
                    self._temporary_folder(folder), ignore_errors=True
                )  # the partial step may be filling the disk
            raise
        finally:
            writing.give_up()

    def lift_rate_limit(self) -> None:
        """Lift the rate limit of the current save: another thread waits for it."""
        self._pace.lift()

    def _temporary_folder(self, folder: Path) -> Path:
        """Return the temporary folder in which a step is written before it is renamed."""
        return folder.with_name(f"{folder.name}{UNCOMMITTED_SUFFIX}-{self._fence.generation}")

    def _commit_in_stages(self, folder: Path, writing: PendingWrite, record: Integrity) -> Integrity:
        peers, fresh = self._peers, self._temporary_folder(folder)
        self._votes.exchange_results(writing.problem or (self._prepare(folder) if peers.process == 0 else ""))
        try:
            writing.write()
            self._votes.exchange_results()
            listed: list[str] = []
            if peers.process == 0:
                writing.finalize()
                listed = list_files(fresh)
            names: list[str] = json.loads(self._votes.exchange_results(value=json.dumps(listed))[0])
            mine = hash_files(fresh, select_share(names, peers.process, peers.num_processes), self._pace)
            shares = self._votes.exchange_results(value=dump_file_hashes(mine))
            manifest = record.model_copy(update={"files": merge_file_hashes(shares)})
            if peers.process == 0:
                write_integrity(fresh, manifest)
                self._fence.check()
                publish_step(fresh, folder, manifest)
        except (SaveFailedError, TrainingError):
            raise
        except Exception as error:  # Orbax reports a full disk as a ValueError
            if self._votes.lost_process_error:
                raise self._votes.lost_process_error from error
            self._votes.exchange_results(describe_error(error))
        self._votes.exchange_results()
        return manifest

    def _prepare(self, folder: Path) -> str:
        """Create the temporary folder of a step; return an error message, empty: success."""
        temporary = self._temporary_folder(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._fence.check()
            existing = read_integrity(folder)
            if existing is not None and existing.generation >= self._fence.generation:
                return f"step {folder.name} is there already"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        except (OSError, ValueError) as error:
            return describe_error(error)
        return ""


def publish_step(fresh: Path, folder: Path, record: Integrity) -> None:
    """Rename a complete and verified step to its final name.

    An existing step of that name is deleted if an earlier world of the job saved it. That world was fenced off during
    the same commit. Anything else is quarantined, because this job has not written it.

    Raises:
        FileExistsError: a later world has committed the step.
        OSError: storage refuses the rename or the deletion.
    """
    try:
        fresh.rename(folder)
    except OSError:
        if not os.path.lexists(folder):
            raise
        if _is_saved_by_job(folder, record):
            void = fresh.with_name(fresh.name + DELETING_SUFFIX)
            folder.rename(void)  # rename first, so that the folder that is checked is the one that is deleted
            there = read_integrity(void)
            if there is None or there.generation > record.generation:
                void.rename(folder)
                raise FileExistsError(f"another world has saved step {record.step}") from None
            shutil.rmtree(void)
        else:
            LOG.warning("set aside what this job has not saved folder=%s", quarantine_step(folder, record.generation))
        fresh.rename(folder)


def _is_saved_by_job(folder: Path, record: Integrity) -> bool:
    there = _read(folder)
    return there is not None and there.job_uid == record.job_uid


def _read(folder: Path) -> Integrity | None:  # None: no manifest shows which job saved it
    with suppress(ValueError, NotADirectoryError):
        return None if folder.is_symlink() else read_integrity(folder)
    return None


def delete_step(folder: Path) -> None:
    """Delete a step under another name, so that a partial deletion does not look like a checkpoint.

    The rename also ensures that a step that another world puts under the old name meanwhile is not deleted.

    Raises:
        OSError: storage refuses the rename or the deletion.
    """
    void = folder.with_name(folder.name + DELETING_SUFFIX)
    shutil.rmtree(void, ignore_errors=True)
    folder.rename(void)
    shutil.rmtree(void)


def quarantine_step(folder: Path, generation: int) -> Path:
    """Rename a step so that it no longer counts as one and can still be inspected; return its new path.

    Raises:
        OSError: storage refuses the rename.
    """
    name = f"{folder.name}{QUARANTINE_SUFFIX}{generation}"
    names = chain([name], (f"{name}-{again}" for again in count(2)))
    aside = next(path for one in names if not os.path.lexists(path := folder.with_name(one)))
    folder.rename(aside)
    return aside
