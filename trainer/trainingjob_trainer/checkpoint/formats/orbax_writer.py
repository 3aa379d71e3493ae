"""Orbax calls for one state: each process copies its arrays and writes its part of a checkpoint.

Orbax's checkpointers also synchronize the processes, three times before training may continue. On busy hosts each of
these barriers waits for the slowest process. So this module uses only the handler below them, which has no barrier. The
handler copies at once, and writes as soon as its folder exists. `commit.py` synchronizes the processes. The files are
those that a checkpointer would write.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from etils.epath.gpath import PosixGPath  # the class that `epath.Path` returns, imported by name
from orbax.checkpoint._src.futures.future import AwaitableSignalsContract  # it has no public name

from trainingjob_trainer.checkpoint.error_exchange import describe_error
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.array_paths import StorePath, array_path

WRITE_SECONDS = 1200
PLACEHOLDER = ocp.PLACEHOLDER
"""Takes the place of an array that is not read."""
MIN_REPLICA_WRITE_BYTES = 4 << 20
"""Minimum bytes that each replica writes of a shared shard; below that, one replica writes the whole shard."""
STEP_METADATA_FILE = "_CHECKPOINT_METADATA"
"""The file in which Orbax records what wrote a folder."""
COMMIT_SUCCESS_FILE = "commit_success.txt"
"""Without this file Orbax takes a folder for incomplete, on stores that cannot rename a folder."""


class CreatedFolder(PosixGPath):  # type: ignore[misc]  # etils has no types
    """A folder that exists, and can be awaited nevertheless.

    Two threads of Orbax share the description of each array (`ParamInfo.await_path_creation`). Each checks whether the
    folder must be awaited, and then awaits the object that is stored there. Meanwhile the other thread may have stored
    the final path. With a plain path there, the save failed.
    """

    async def await_creation(self) -> epath.Path:
        """Return the path at once."""
        return self


class CreatedStoreFolder(StorePath):
    """The same in a bucket."""

    async def await_creation(self) -> epath.Path:
        """Return the path at once."""
        return self


class PendingFolder:
    """A folder that does not exist yet, in the form that Orbax waits for (its `PathAwaitingCreation`)."""

    def __init__(self, path: epath.Path, made: "Future[None] | None" = None) -> None:
        self.path = path
        self._created: Future[None] = made or Future()

    def __truediv__(self, name: epath.PathLike) -> "PendingFolder":
        return PendingFolder(self.path / name, self._created)

    async def await_creation(self) -> epath.Path:
        """Return the path once it may be written to; raise CancelledError if `give_up` was called."""
        await asyncio.wrap_future(self._created)
        return (CreatedStoreFolder if isinstance(self.path, StorePath) else CreatedFolder)(self.path)

    def mark_created(self) -> None:
        """Signal that the folder exists."""
        self._created.set_result(None)

    def discard(self) -> None:
        """Cancel the waiters, unless the folder exists: they end without an error message."""
        self._created.cancel()


class PendingWrite:
    """A copied state that is to be written into a folder. `problem` is the error of the copy; empty: none."""

    def __init__(
        self, handler: ocp.StandardCheckpointHandler, folder: PendingFolder, parts: Iterable[Any], problem: str = ""
    ) -> None:
        self.problem = problem
        self._handler = handler
        self._folder = folder
        self._parts = parts
        self._started_at_ns = time.time_ns()

    def write(self) -> None:
        """Write this process's part into the folder, which must exist.

        Raises:
            Exception: any error of Orbax when storage refuses a write; for a full disk it is a ValueError.
        """
        self._folder.mark_created()
        for part in self._parts:
            part.result(timeout=WRITE_SECONDS)

    def finalize(self) -> None:
        """Finalize the checkpoint after all processes have written; one process does this for all.

        Raises:
            Exception: any error of Orbax when storage refuses a write, or when the parts do not fit together.
        """
        folder = self._folder.path
        self._handler.finalize(folder)
        metadata = {
            "item_handlers": self._handler.typestr(),
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": self._started_at_ns,
            "commit_timestamp_nsecs": time.time_ns(),
            "custom_metadata": {},
        }
        ocp.metadata.metadata_store(enable_write=True, blocking_write=True).write(folder / STEP_METADATA_FILE, metadata)
        (folder / COMMIT_SUCCESS_FILE).write_text("Orbax has written all of it.\n")

    def give_up(self) -> None:
        """Discard the copy, if none of it is written yet."""
        self._folder.discard()


class OrbaxWriter:
    """Orbax's handler of complete states, as one process of a world."""

    def __init__(self, peers: ProcessGroup) -> None:
        limit_replica_writes()
        options = world_options(peers, "trainingjob")
        self._handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
        self._reader = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)

    def copy(self, folder: str, state: Mapping[str, Any]) -> PendingWrite:
        """Copy a state to host memory, to be written into a folder later; its arrays may be donated afterwards.

        `folder` is a path or URI.
        """
        expected = PendingFolder(array_path(folder))
        try:
            with without_orbax_signals():
                parts = asyncio.run(self._handler.async_save(expected, args=ocp.args.StandardSave(state)))
        except Exception as error:  # noqa: BLE001  # the other processes write on, and get this error later
            expected.discard()
            return PendingWrite(self._handler, expected, (), describe_error(error))
        return PendingWrite(self._handler, expected, parts or ())

    def restore(self, folder: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return saved items with the shapes and shardings of `state`; all processes read them, without a barrier.

        Other items in the folder are not read.
        """
        restore_args = jax.tree.map(make_restore_args, dict(state))
        restored: dict[str, Any] = self._reader.restore(
            array_path(folder),
            args=ocp.args.PyTreeRestore(item=dict(state), restore_args=restore_args, partial_restore=True),
        )
        return restored


def make_restore_args(leaf: Any) -> Any:
    """Return Orbax's restore arguments of an array: sharding, shape and dtype. A placeholder is not read."""
    if leaf is PLACEHOLDER:
        return ocp.RestoreArgs()
    return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def limit_replica_writes() -> None:
    """Make Orbax split the write of a shard between its replicas only where each part is large.

    A compiled program cuts out each part. The first save of every world would compile one program for each shape while
    training waits. That takes seconds where many shapes are small and the machine is busy.
    """
    # Registering another handler would log a warning in every world, and would not write the files beside the arrays.
    handler: Any = ocp.type_handlers.get_type_handler(jax.Array)
    handler._min_slice_bytes_for_replica_parallel = MIN_REPLICA_WRITE_BYTES  # noqa: SLF001  # settable only in its constructor


@contextmanager
def without_orbax_signals() -> Iterator[None]:
    """Disable Orbax's cross-process signal handshake: a save waits only for its folder.

    For each part of a save, Orbax would query the coordination service in process 0 while training waits. If process 0
    hangs, all other processes would then hang in a save. A save may take minutes before it counts as hung.
    """
    known = vars(AwaitableSignalsContract)["get_awaitable_signals_from_contract"]
    AwaitableSignalsContract.get_awaitable_signals_from_contract = staticmethod(lambda operation_id=None: [])
    try:
        yield
    finally:
        AwaitableSignalsContract.get_awaitable_signals_from_contract = known


def world_options(peers: ProcessGroup, prefix: str) -> ocp.options.MultiprocessingOptions:
    """Return Orbax's options for all processes of a world, with process 0 as primary.

    `prefix` separates its barriers from others. With named processes, Orbax uses barriers of the coordination service
    instead of collectives. Orbax compares the given indices with `jax.process_index`. At the barriers it passes the
    same indices, although the coordination service numbers processes by the world (`multihost.py`,
    `get_barrier_sync_fn`). Both numberings have the same set for all processes together, but not for a subset of
    several processes.
    """
    indices = [peers.runtime_index(process) for process in range(peers.num_processes)]
    return ocp.options.MultiprocessingOptions(
        primary_host=indices[0], active_processes=set(indices), barrier_sync_key_prefix=prefix
    )


def process_options(peers: ProcessGroup) -> ocp.options.MultiprocessingOptions:
    """Return Orbax's options for this process alone: no barriers with other processes."""
    index = peers.runtime_index(peers.process)
    return ocp.options.MultiprocessingOptions(primary_host=index, active_processes={index})
