"""One save: the state copied, written in the background, hashed, proven and moved into place, by all processes.

It is written under a name that no other world uses, and moved only when its proof lies beside it: so a step is there
whole or not at all, and nothing of it can be another world's.

After each stage every process says what went wrong on its host, if anything did, and all act on the same answers. So a
store that fails one host fails the save and nothing else: nobody waits for a host that has given up, nobody takes for
saved what another one could not write, and all know of it before the next save begins.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.saving.fence import Fence
from trainingjob_trainer.saving.integrity import (
    FILE,
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

COMMIT_SECONDS = 1800
UNPROVEN = ".saving"
"""In the name of a folder that is being written and hashed, before the number of the generation that does."""
VOID = ".void"
"""At the end of the name of a step that is about to be deleted because another takes its place."""


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

    What has that name is deleted: a world has left it that was cut off while it did the same, or nobody has proven it.

    Raises:
        FileExistsError: a later world has put it there.
        OSError: storage refuses it.
    """
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        void = fresh.with_name(fresh.name + VOID)
        folder.rename(void)  # first, so that what is looked at is what is deleted
        there = None
        with suppress(ValueError):
            there = read_integrity(void)
        if there and there.job_uid == record.job_uid and there.generation > record.generation:
            void.rename(folder)
            raise FileExistsError(f"generation {there.generation} has saved step {record.step}") from None
        delete_step(void)
        fresh.rename(folder)


def delete_step(folder: Path) -> None:
    """Delete a step so that no half of it can pass for a whole one.

    Raises:
        OSError: storage refuses it.
    """
    (folder / FILE).unlink(missing_ok=True)
    shutil.rmtree(folder)
