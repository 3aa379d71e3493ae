"""One save: the state copied, written in the background, hashed, proven and moved into place, by all processes.

It is written under a name that no other world uses, and moved only when its proof lies beside it: so a step is there
whole or not at all, and nothing of it can be another world's.

After each stage every process says what went wrong on its host, if anything did, and all act on the same answers. So a
store that fails one host fails the save and nothing else: nobody waits for a host that has given up, nobody takes for
saved what another one could not write, and all know of it before the next save begins.
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

from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.saving.fence import Fence
from trainingjob_trainer.saving.integrity import (
    Integrity,
    Pace,
    dump_fingerprints,
    hash_files,
    list_files,
    merge_fingerprints,
    read_integrity,
    share,
    write_integrity,
)
from trainingjob_trainer.saving.orbax_writing import OrbaxWriter, Writing
from trainingjob_trainer.saving.votes import SaveFailedError, Votes, describe
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
COMMIT_SECONDS = 1800
UNPROVEN = ".saving"
"""In the name of a folder that is being written and hashed, before the number of the generation that does."""
VOID = ".void"
"""At the end of the name of a step that is about to be deleted."""
ASIDE = ".damaged-"
"""In the name of a step that was set aside, before the number of the generation that found the damage."""


class Committer:
    """Writes steps with Orbax, one at a time, as one process of a world. `name` is this host's, for people."""

    def __init__(self, peers: Peers, name: str, fence: Fence) -> None:
        self._peers = peers
        self._fence = fence
        self._votes = Votes(peers, name, "save", COMMIT_SECONDS)
        self._pace = Pace()
        self.orbax = OrbaxWriter(peers)

    def begin(self, folder: Path, state: Mapping[str, Any]) -> Writing:
        """Copy the arrays of a state, which may be consumed afterwards; `finish` writes them into a folder.

        Here training waits, so nobody waits for another process here.
        """
        self._pace.begin()
        return self.orbax.copy(self._beside(folder), state)

    def finish(self, folder: Path, writing: Writing, record: Integrity) -> Integrity:
        """Write a copied state, hash its files, each host its share, and write the record with the hashes.

        All processes return that record.

        Raises:
            SaveFailedError: it could not be, and what there is of it is deleted.
            TrainingError: a later world is there, so that this one is cut off.
            JaxRuntimeError: another process is gone.
        """
        self._votes.begin()
        try:
            return self._prove(folder, writing, record)
        except SaveFailedError:
            if self._peers.process == 0:
                shutil.rmtree(self._beside(folder), ignore_errors=True)  # it may be what fills the disk
            raise
        finally:
            writing.give_up()

    def hurry(self) -> None:
        """Finish what is being saved as fast as storage allows: somebody waits for it."""
        self._pace.hurry()

    def _beside(self, folder: Path) -> Path:
        """Return where a step is written before it is put into place."""
        return folder.with_name(f"{folder.name}{UNPROVEN}-{self._fence.generation}")

    def _prove(self, folder: Path, writing: Writing, record: Integrity) -> Integrity:
        peers, fresh = self._peers, self._beside(folder)
        self._votes.cast(writing.problem or (self._prepare(folder) if peers.process == 0 else ""))
        try:
            writing.write()
            self._votes.cast()
            listed: list[str] = []
            if peers.process == 0:
                writing.finalize()
                listed = list_files(fresh)
            names: list[str] = json.loads(self._votes.cast(said=json.dumps(listed))[0])
            mine = hash_files(fresh, share(names, peers.process, peers.num_processes), self._pace)
            shares = self._votes.cast(said=dump_fingerprints(mine))
            proven = record.model_copy(update={"files": merge_fingerprints(shares)})
            if peers.process == 0:
                write_integrity(fresh, proven)
                self._fence.check()
                put_in_place(fresh, folder, proven)
        except (SaveFailedError, TrainingError):
            raise
        except Exception as error:  # Orbax tells a full disk as a ValueError
            if self._votes.lost:
                raise self._votes.lost from error
            self._votes.cast(describe(error))
        self._votes.cast()
        return proven

    def _prepare(self, folder: Path) -> str:
        """Make the folder that a step is written into, and way for it; return what is wrong, empty: nothing."""
        fresh = self._beside(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._fence.check()
            there = read_integrity(folder)
            if there is not None and there.generation >= self._fence.generation:
                return f"step {folder.name} is there already"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
        except (OSError, ValueError) as error:
            return describe(error)
        return ""


def put_in_place(fresh: Path, folder: Path, record: Integrity) -> None:
    """Give a step that is written and proven its name, by which it is found.

    What has that name is deleted where an earlier world of the job has saved it, which was cut off while it did the
    same. Anything else is set aside: this job has not written it.

    Raises:
        FileExistsError: a later world has put it there.
        OSError: storage refuses it.
    """
    try:
        fresh.rename(folder)
    except OSError:
        if not os.path.lexists(folder):
            raise
        if _is_of_job(folder, record):
            void = fresh.with_name(fresh.name + VOID)
            folder.rename(void)  # first, so that what is looked at is what is deleted
            there = read_integrity(void)
            if there is None or there.generation > record.generation:
                void.rename(folder)
                raise FileExistsError(f"another world has saved step {record.step}") from None
            shutil.rmtree(void)
        else:
            LOG.warning("set aside what this job has not saved folder=%s", set_aside(folder, record.generation))
        fresh.rename(folder)


def _is_of_job(folder: Path, record: Integrity) -> bool:
    there = _read(folder)
    return there is not None and there.job_uid == record.job_uid


def _read(folder: Path) -> Integrity | None:  # None: nothing shows who has saved what lies there
    with suppress(ValueError, NotADirectoryError):
        return None if folder.is_symlink() else read_integrity(folder)
    return None


def delete_step(folder: Path) -> None:
    """Delete a step so that no half of it can pass for a whole one, or for what somebody else has put there.

    Raises:
        OSError: storage refuses it.
    """
    void = folder.with_name(folder.name + VOID)
    shutil.rmtree(void, ignore_errors=True)
    folder.rename(void)
    shutil.rmtree(void)


def set_aside(folder: Path, generation: int) -> Path:
    """Rename a step, so that it is no step any more and can still be looked at; return its new name.

    Raises:
        OSError: storage refuses it.
    """
    name = f"{folder.name}{ASIDE}{generation}"
    names = chain([name], (f"{name}-{again}" for again in count(2)))
    aside = next(path for one in names if not os.path.lexists(path := folder.with_name(one)))
    folder.rename(aside)
    return aside
