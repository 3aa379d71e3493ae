"""What Orbax does with one state: it copies the arrays, and writes them, each process its part, where they belong.

Orbax's checkpointers do more: they let the processes meet, three times before training may go on. Where hosts are busy
each of these meetings waits for the last of them to hear of it. So only the part below them is used here, which meets
nobody: the handler, which copies at once, and writes as soon as it hears that the folder is there. Everything between
the processes is `commit.py`'s. What is written is what a checkpointer would have written.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from etils.epath.gpath import PosixGPath  # what `epath.Path` makes, by its name
from orbax.checkpoint._src.futures.future import AwaitableSignalsContract  # it has no public name

from trainingjob_trainer.saving.votes import describe
from trainingjob_trainer.world import Peers

WRITE_SECONDS = 1200
PART_BYTES = 4 << 20
"""The least that each of several replicas writes of a shard; where it would be less, one of them writes it all."""
STEP_METADATA = "_CHECKPOINT_METADATA"
"""The file by which Orbax tells what wrote a folder."""
SUCCESS = "commit_success.txt"
"""The file without which Orbax takes a folder for half written, where a store cannot rename one."""


class CreatedFolder(PosixGPath):  # type: ignore[misc]  # etils has no types
    """A folder that is there, and can be awaited all the same.

    Two threads of Orbax share the description of each array (`ParamInfo.await_path_creation`). Each looks whether the
    folder must be awaited, and then awaits what stands in its place. The other thread may just have put the path there,
    and with a plain path the save failed.
    """

    async def await_creation(self) -> epath.Path:
        """Return the path at once."""
        return self


class ExpectedFolder:
    """A folder that is not there yet, as Orbax waits for one (its `PathAwaitingCreation`)."""

    def __init__(self, path: epath.Path, made: "Future[None] | None" = None) -> None:
        self.path = path
        self._made: Future[None] = made or Future()

    def __truediv__(self, name: epath.PathLike) -> "ExpectedFolder":
        return ExpectedFolder(self.path / name, self._made)

    async def await_creation(self) -> epath.Path:
        """Return the path once it may be written to; raises CancelledError where it never will be."""
        await asyncio.wrap_future(self._made)
        return CreatedFolder(self.path)

    def open(self) -> None:
        """Tell that it is there."""
        self._made.set_result(None)

    def give_up(self) -> None:
        """Tell that it will not be there, unless it is: who waits for it ends without a word."""
        self._made.cancel()


class Writing:
    """One state, copied, to be written into a folder. `problem` is what went wrong with the copy; empty: nothing."""

    def __init__(
        self, handler: ocp.StandardCheckpointHandler, folder: ExpectedFolder, parts: Iterable[Any], problem: str = ""
    ) -> None:
        self.problem = problem
        self._handler = handler
        self._folder = folder
        self._parts = parts
        self._begun = time.time_ns()

    def write(self) -> None:
        """Write what is this process's into the folder, which must be there.

        Raises:
            Exception: whatever Orbax says of storage that refuses it: of a full disk it is a ValueError.
        """
        self._folder.open()
        for part in self._parts:
            part.result(timeout=WRITE_SECONDS)

    def finalize(self) -> None:
        """Make one whole of what all processes have written; one of them does it for all.

        Raises:
            Exception: whatever Orbax says of storage that refuses it, or of parts that do not belong together.
        """
        folder = self._folder.path
        self._handler.finalize(folder)
        metadata = {
            "item_handlers": self._handler.typestr(),
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": self._begun,
            "commit_timestamp_nsecs": time.time_ns(),
            "custom_metadata": {},
        }
        ocp.metadata.metadata_store(enable_write=True, blocking_write=True).write(folder / STEP_METADATA, metadata)
        (folder / SUCCESS).write_text("Orbax has written all of it.\n")

    def give_up(self) -> None:
        """Forget the copy, if nothing of it is written yet."""
        self._folder.give_up()


class OrbaxWriter:
    """Orbax's handler of whole states, as one process of a world."""

    def __init__(self, peers: Peers) -> None:
        share_out_large_arrays()
        self._handler = ocp.StandardCheckpointHandler(multiprocessing_options=name_processes(peers, "trainingjob"))

    def copy(self, folder: Path, state: Mapping[str, Any]) -> Writing:
        """Copy a state to the host, to be written into a folder later; the arrays may be consumed afterwards."""
        expected = ExpectedFolder(epath.Path(folder))
        try:
            with awaiting_no_signals():
                parts = asyncio.run(self._handler.async_save(expected, args=ocp.args.StandardSave(state)))
        except Exception as error:  # noqa: BLE001  # whatever it is, the others write meanwhile and hear of it then
            expected.give_up()
            return Writing(self._handler, expected, (), describe(error))
        return Writing(self._handler, expected, parts or ())

    def restore(self, folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a saved state, laid out as `state` describes; all processes read it, each at its own pace."""
        restored: dict[str, Any] = self._handler.restore(epath.Path(folder), args=ocp.args.StandardRestore(state))
        return restored


def share_out_large_arrays() -> None:
    """Have Orbax split the writing of a shard between its replicas only where each has much to write.

    A part is cut out by a program. The first save of every world would compile one for each shape while training waits:
    for seconds where many are small and the machine is busy.
    """
    # Another handler in its place would be warned of in every world's log, and would not write what lies beside arrays.
    handler: Any = ocp.type_handlers.get_type_handler(jax.Array)
    handler._min_slice_bytes_for_replica_parallel = PART_BYTES  # noqa: SLF001  # it takes that when it is made, only


@contextmanager
def awaiting_no_signals() -> Iterator[None]:
    """Have Orbax ask nobody what it must wait for before it writes: nothing but the folder, which it is told of.

    For each part of a save it would ask the coordination service, which lives in process 0, while training waits. Where
    that process hangs, so would all others, in a save: and a save is given minutes before it counts as hanging.
    """
    known = vars(AwaitableSignalsContract)["get_awaitable_signals_from_contract"]
    AwaitableSignalsContract.get_awaitable_signals_from_contract = staticmethod(lambda operation_id=None: [])
    try:
        yield
    finally:
        AwaitableSignalsContract.get_awaitable_signals_from_contract = known


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
