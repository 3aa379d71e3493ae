"""One save: the state copied, written in the background, hashed, proven and moved into place, by all processes.

It is written under a name that no other world uses, and moved only when its proof lies beside it: so a step is there
whole or not at all, and nothing of it can be another world's.

After each stage every process says what went wrong on its host, if anything did, and all act on the same answers. So a
store that fails one host fails the save and nothing else: nobody waits for a host that has given up, nobody takes for
saved what another one could not write, and all know of it before the next save begins.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.path import atomicity

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
from trainingjob_trainer.saving.votes import SaveFailedError, Votes, describe
from trainingjob_trainer.world import Peers

COMMIT_SECONDS = 1800
SAVE_SECONDS = 1200
UNPROVEN = ".saving"
"""In the name of a folder that is being written and hashed, before the number of the generation that does."""
VOID = ".void"
"""At the end of the name of a step that is about to be deleted because another takes its place."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""At the end of the name of a folder that Orbax has not finished."""
PART_BYTES = 4 << 20
"""The least that each of several replicas writes of a shard; where it would be less, one of them writes it all."""


class PatientFolder(atomicity.AtomicRenameTemporaryPath):  # type: ignore[misc]
    """The folder of a step that is being written. If it cannot be made, that is told where it would be put into place.

    Told at once it would end the thread that says to all hosts that the folder is there, and Orbax waits five minutes
    for that word. This way everybody goes on to the next meeting, and hears there what is wrong.
    """

    _error: Exception | None = None

    async def create(self) -> Any:
        """Make the folder, or keep what went wrong; return its path."""
        try:
            await super().create()
        except Exception as error:  # noqa: BLE001  # `finalize` raises it
            self._error = error
        return self.get()

    async def finalize(self) -> None:
        """Put the step into place, or raise what went wrong when its folder was made."""
        if self._error:
            raise self._error
        await super().finalize()


class Committer:
    """Writes steps with Orbax, one at a time, as one process of a world. `name` is this host's, for people."""

    def __init__(self, peers: Peers, name: str, fence: Fence) -> None:
        self._peers = peers
        self._fence = fence
        self._votes = Votes(peers, name, "save", COMMIT_SECONDS)
        self._problem = ""
        self._pace = Pace()
        share_out_large_arrays()
        processes = name_processes(peers, "trainingjob")
        self.orbax = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(multiprocessing_options=processes),
            async_options=ocp.options.AsyncOptions(timeout_secs=SAVE_SECONDS, barrier_sync_fn=self._meet),
            multiprocessing_options=processes,
            # A writer of its own would tell what went wrong at the next save only, and to its own host.
            checkpoint_metadata_store=ocp.metadata.metadata_store(enable_write=True, blocking_write=True),
            temporary_path_class=PatientFolder,
        )

    def begin(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Copy the arrays of a state and begin to write it into a folder; `finish` says what became of it.

        Raises:
            SaveFailedError: nothing can be written there.
            TrainingError: a later world is there, so that this one is cut off.
        """
        self._pace.begin()
        self._votes.begin()
        self._votes.cast(self._prepare(folder) if self._peers.process == 0 else "")
        self._problem = ""
        try:
            self.orbax.save(self._beside(folder), args=ocp.args.StandardSave(state))
        except Exception as error:  # noqa: BLE001  # whatever it is, the others write meanwhile and hear of it then
            self._problem = describe(error)

    def finish(self, folder: Path, record: Integrity) -> Integrity:
        """Wait until a state is written, hash its files, each host its share, and write the record with the hashes.

        All processes return that record.

        Raises:
            SaveFailedError: it could not be, and what there is of it is deleted.
            TrainingError: a later world is there, so that this one is cut off.
            JaxRuntimeError: another process is gone.
        """
        try:
            return self._prove(folder, record)
        except SaveFailedError:
            if self._peers.process == 0:
                discard(self._beside(folder))
            raise

    def hurry(self) -> None:
        """Finish what is being saved as fast as storage allows: somebody waits for it."""
        self._pace.hurry()

    def _beside(self, folder: Path) -> Path:
        """Return where a step is written before it is put into place."""
        return folder.with_name(f"{folder.name}{UNPROVEN}-{self._fence.generation}")

    def _prove(self, folder: Path, record: Integrity) -> Integrity:
        peers, fresh = self._peers, self._beside(folder)
        if self._problem:
            self._votes.cast(self._problem)
        try:
            self.orbax.wait_until_finished()
            listed = list_files(fresh) if peers.process == 0 else []
            if peers.process == 0 and not listed:
                raise FileNotFoundError(f"nothing was written to {fresh}")
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
        """Make way for a step and prove that something can be written there; return what is wrong, empty: nothing."""
        probe = folder.with_name(f".probe.{os.uname().nodename}.{os.getpid()}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._fence.check()
            there = read_integrity(folder)
            if there is not None and there.generation >= self._fence.generation:
                return f"step {folder.name} is there already"
            discard(self._beside(folder))
            probe.write_bytes(b"x")
            probe.unlink()
        except (OSError, ValueError) as error:
            return describe(error)
        return ""

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Meet the others where Orbax does: when all is written, and when it is in place."""
        del key, timeout_ms
        self._votes.cast()


def share_out_large_arrays() -> None:
    """Have Orbax split the writing of a shard between its replicas only where each has much to write.

    A part is cut out by a program. The first save of every world would compile one for each shape while training waits:
    for seconds where many are small and the machine is busy.
    """
    # Another handler in its place would be warned of in every world's log, and would not write what lies beside arrays.
    handler: Any = ocp.type_handlers.get_type_handler(jax.Array)
    handler._min_slice_bytes_for_replica_parallel = PART_BYTES  # noqa: SLF001  # it takes that when it is made, only


def name_processes(peers: Peers, prefix: str) -> ocp.options.MultiprocessingOptions:
    """Return the processes of a world for Orbax, process 0 as its primary; `prefix` sets apart what else meets there.

    Named, they meet at the coordination service's barriers instead of in collectives. Orbax compares what it is given
    with `jax.process_index`, and asks for the same numbers at those barriers, which go by the world's (`multihost.py`,
    `get_barrier_sync_fn`). That is right for all processes together, and for no smaller number of several.
    """
    indices = [peers.index(process) for process in range(peers.num_processes)]
    return ocp.options.MultiprocessingOptions(
        primary_host=indices[0], active_processes=set(indices), barrier_sync_key_prefix=prefix
    )


def name_alone(peers: Peers) -> ocp.options.MultiprocessingOptions:
    """Return this process for Orbax, as one that does something for itself and meets nobody."""
    index = peers.index(peers.process)
    return ocp.options.MultiprocessingOptions(primary_host=index, active_processes={index})


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


def discard(fresh: Path) -> None:
    """Delete what a save that failed has left: it may be what fills the disk."""
    for left in (fresh.with_name(fresh.name + UNFINISHED), fresh):
        shutil.rmtree(left, ignore_errors=True)
