"""Saving and restoring the state below `<uri>/lineage-0/<step>`.

Orbax writes in the background and moves the finished folder into place; then all hosts hash its files, process 0 writes
`integrity.json`, and only then the step is announced. Which steps exist, which may be restored and which are deleted is
decided here: Orbax's own bookkeeping knows neither generations nor damage.
"""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from trainingjob_api.protocol import FailureReason
from trainingjob_api.running import Keep
from trainingjob_api.world import RunConfig, Tier, World
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import TrainingError, storage_error
from trainingjob_trainer.integrity import (
    Integrity,
    dump_fingerprints,
    hash_files,
    list_files,
    merge_fingerprints,
    read_integrity,
    share,
    write_integrity,
)
from trainingjob_trainer.restore_point import Memory, Recalled, RestorePoint, delete_step, list_saved
from trainingjob_trainer.snapshot_files import Key
from trainingjob_trainer.spikes import begin_like
from trainingjob_trainer.step import State
from trainingjob_trainer.wire import Event
from trainingjob_trainer.world import Peers

LINEAGE = "lineage-0"
COMMIT_SECONDS = 1800
SAVE_SECONDS = 1200


class Checkpoints:
    """The saved steps of a job, as one process of one world writes and reads them. `data` is the index's identity."""

    def __init__(self, root: Path, config: RunConfig, world: World, peers: Peers, data: str, events: Events) -> None:
        self._root = root
        self._folder = root / LINEAGE
        self._checkpoint = config.spec.checkpoint
        self._world = world
        self._peers = peers
        self._data = data
        self._events = events
        self._restored = 0
        self._newest = 0
        self.recalled: Key | None = None
        """The snapshot that was restored. None: none was, but a saved step, or nothing."""
        self._commit: threading.Thread | None = None
        self._error: Exception | None = None
        # Naming the processes makes Orbax meet at the coordination service's barriers instead of in collectives.
        processes = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes=set(range(peers.num_processes)), barrier_sync_key_prefix="trainingjob"
        )
        self._orbax = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(multiprocessing_options=processes),
            async_options=ocp.options.AsyncOptions(timeout_secs=SAVE_SECONDS),
            multiprocessing_options=processes,
        )

    def restore(self, state: State, memory: Memory | None = None) -> State | None:  # None: start from scratch
        """Return the newest whole state of the job's history, saved or in memory, laid out as `state` describes.

        Raises:
            TrainingError: there are checkpoints, and none can be used.
        """
        takeover = self._checkpoint.takeover
        search = RestorePoint(self._folder, self._world, self._peers, self._events, memory, takeover=takeover)
        try:
            found = search.find(self._data, tuple(hash_shapes(form) for form in _forms(state)))
        except OSError as error:
            raise storage_error(error, f"reading {self._folder}", str(self._root)) from error
        if found is None:
            return None
        if isinstance(found, Recalled):
            self.recalled = found.key
            self._newest = found.key[1]
            return found.state
        self._restored = self._newest = int(found.name)
        return self._load(found, state)

    @property
    def tier(self) -> Tier:
        """Return where the state was restored from, if it was."""
        return "durable" if self.recalled is None else "ram"

    @property
    def is_durable(self) -> bool:
        """Return whether what was restored is a saved step too."""
        if self.recalled is None:
            return True
        saved = read_integrity(self._folder / str(self._newest))
        return saved is not None and (saved.generation, saved.step) == self.recalled

    @property
    def newest(self) -> int:
        """Return the newest step that was saved or restored here; 0: none."""
        return self._newest

    def is_due(self, step: int) -> bool:
        """Return whether the spec asks for a save after a step."""
        return step % self._checkpoint.save.every_steps == 0

    def save(self, step: int, state: State) -> None:
        """Copy the state and write it in the background. Waits for the save before it.

        Raises:
            TrainingError: this or the save before it failed.
        """
        self.wait()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._orbax.save(self._folder / str(step), args=ocp.args.StandardSave(_written(state)))
        except OSError as error:
            raise storage_error(error, f"saving step {step}", str(self._root)) from error
        self._newest = step
        self._commit = threading.Thread(
            target=self._finish, args=(step, hash_shapes(state)), name=f"commit-{step}", daemon=True
        )
        self._commit.start()

    def wait(self) -> None:
        """Wait until all that was saved is committed.

        Raises:
            TrainingError: it could not be.
        """
        if self._commit:
            self._commit.join()
            self._commit = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._error:
            raise self._error

    def _load(self, folder: Path, state: State) -> State:
        """Return a saved state. Where it was saved before spikes were looked for, nothing was seen yet."""
        saved = read_integrity(folder)
        form = next(form for form in _forms(state) if saved is None or hash_shapes(form) == saved.state)
        restored = State(**self._orbax.restore(folder, args=ocp.args.StandardRestore(_written(form))))
        if state.window is None or restored.window is not None:
            return restored
        return restored._replace(window=begin_like(state.window))

    def _finish(self, step: int, state: str) -> None:
        try:
            self._orbax.wait_until_finished()
            self._prove(step, state)
            self._events.send(Event(committed=step))
            if self._peers.process == 0:
                self._delete_old(step)
        except OSError as error:
            self._error = storage_error(error, f"saving step {step}", str(self._root))
        except Exception as error:  # noqa: BLE001  # the training thread raises it
            self._error = error

    def _prove(self, step: int, state: str) -> None:
        """Hash the saved files, each host its share, and write the record."""
        folder, peers = self._folder / str(step), self._peers
        listed = json.dumps(list_files(folder)) if peers.process == 0 else ""
        names: list[str] = json.loads(peers.exchange(f"saved/{step}", listed, COMMIT_SECONDS)[0])
        mine = hash_files(folder, share(names, peers.process, peers.num_processes))
        shares = peers.exchange(f"hashed/{step}", dump_fingerprints(mine), COMMIT_SECONDS)
        if peers.process == 0:
            if not names:
                raise TrainingError(FailureReason.STORAGE, f"Orbax saved no files of step {step} in {folder}.")
            record = Integrity(
                job_uid=self._world.job_uid,
                generation=self._world.generation,
                step=step,
                data=self._data,
                state=state,
                files=merge_fingerprints(shares),
            )
            write_integrity(folder, record)
        peers.wait(f"committed/{step}", COMMIT_SECONDS)

    def _delete_old(self, step: int) -> None:
        committed = [one.step for one in list_saved(self._folder) if one.integrity and one.step <= step]
        for old in choose_deletions(committed, self._checkpoint.keep, self._restored):
            delete_step(self._folder / str(old))


def _forms(state: State) -> list[State]:
    """Return the forms in which a state may have been saved, its own first."""
    return [state] if state.window is None else [state, state._replace(window=None)]


def _written(state: State) -> dict[str, Any]:
    """Return a state as it is saved: what it does not have leaves no trace."""
    return {name: value for name, value in state._asdict().items() if value is not None}


def hash_shapes(state: State) -> str:
    """Return a hash of the names, shapes and formats of a state's arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    described = [[jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves]
    return hashlib.sha256(json.dumps(sorted(described)).encode()).hexdigest()


def choose_deletions(committed: list[int], keep: Keep, restored: int) -> list[int]:
    """Return the steps to delete: not the newest few, no multiples to keep, never the one that was restored."""
    kept = {restored, *sorted(committed)[-keep.last :]}
    return [step for step in committed if step not in kept and not (keep.every_steps and step % keep.every_steps == 0)]
