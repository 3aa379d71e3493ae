"""Saving and restoring the state below `<uri>/lineage-<n>/<step>.*`; each rollback opens a new lineage.

Orbax writes in the background. Then all hosts hash the files, and process 0 writes `integrity.json`, which commits the
step. Only then is the step reported as committed. This package decides which steps exist, which may be
restored and which are deleted, because Orbax's own bookkeeping knows neither generations nor damage.

A failed save does not stop training: it is reported, training continues, and the next save retries.
"""

import logging
import threading
import time
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.base import seconds
from trainingjob_api.protocol import MAX_MESSAGE, FailedSave
from trainingjob_api.world import RunConfig, Tier, World
from trainingjob_trainer.checkpoint.backup import Backup
from trainingjob_trainer.checkpoint.candidates import Expected, Stores
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.checkpoint.commit import Committer, PendingStep
from trainingjob_trainer.checkpoint.error_exchange import SaveFailedError
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import Integrity, read_integrity
from trainingjob_trainer.checkpoint.restore import RestoredSnapshot, RestoreSearch, SnapshotSource
from trainingjob_trainer.checkpoint.retention import BestSteps, delete_expired
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.checkpoint.store.opening import open_store
from trainingjob_trainer.optim.spike_detection import empty_window_like
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.state import Signal, State

LOG = logging.getLogger(__name__)
RETRY_SECONDS = 60.0
"""Seconds after a failed save at which the next save is due, unless one is due earlier."""
FINAL_RETRY_SECONDS = 10.0
"""Seconds between retries when no step is left to train."""


class Checkpoints:
    """The checkpoints of a job, as one process of one world writes and reads them. `data` is the token index's hash."""

    def __init__(
        self, root: Path, config: RunConfig, world: World, peers: ProcessGroup, data: str, events: AgentEvents
    ) -> None:
        self._root = root
        self._batch_size = config.spec.training.global_batch_size
        self._seed = config.spec.training.seed
        self._checkpoint = config.spec.checkpoint
        self._world = world
        self._peers = peers
        self._data = data
        self._events = events
        self._restored = 0
        self._newest = 0
        self._catch_up_step: int | None = (
            None  # None: only saves by steps or time are due; else a save is due from this step on
        )
        self._last_save_at = time.monotonic()
        self._has_signaled = False
        self.inventory = CheckpointInventory()
        """The checkpoints that existed when this world resumed; empty before `restore`."""
        self._bests = BestSteps(self._checkpoint.keep.best, {})
        self.past = Provenance()
        """The past of every state that this world saves; empty before `restore`."""
        self.restored_snapshot: Key | None = None
        """The snapshot that was restored. None: a checkpoint was restored, or nothing."""
        self._commit: threading.Thread | None = None
        self._outcome: FailedSave | int | None = None  # None: no save has ended since the last check
        self._error: Exception | None = None
        self._tried: tuple[int, Mapping[str, float]] = 0, {}
        name = _host_name(world, peers.process)
        self._store = open_store(root)
        self._fence = Fence(self._store, world)
        self._committer = Committer(self._store, peers, name, self._fence)
        self._backup = Backup(config, world, peers, events, name) if self._checkpoint.backup else None
        self._restored_from_backup = False
        self._saved: tuple[StepFolder, Integrity] | None = None  # None: this world has saved nothing yet
        self.is_failing = False
        """Whether the newest awaited save has failed: the same on all processes at the same step."""

    def restore(
        self, state: State, memory: SnapshotSource | None = None, replica: SingleReplicaRestore | None = None
    ) -> State | None:  # None: start from scratch
        """Return the newest intact state of the job's history, from storage or memory, with the layout of `state`.

        `replica` restores a checkpoint by broadcast from one replica. None: all processes read.

        Raises:
            TrainingError: checkpoints exist, and none can be used.
        """
        takeover = self._checkpoint.takeover
        stores = Stores(self._store, self._backup.store if self._backup else None)
        fewer = replica if replica and replica.saves_reads else None
        search = RestoreSearch(
            stores,
            self._world,
            self._peers,
            self._events,
            memory,
            takeover=takeover,
            readers=fewer.readers if fewer else None,
        )
        try:
            forms = tuple(hash_shapes(form) for form in _accepted_forms(state))
            found = search.find(Expected(self._data, forms, self._seed))
        except OSError as error:
            raise storage_error(error, f"reading {self._root}", str(self._root)) from error
        if found is None:
            self._set_past(Provenance(), 0)
            return None
        if isinstance(found, RestoredSnapshot):
            self.restored_snapshot = found.key
            generation, self._newest = found.key
            self._take_inventory(search, self._world.job_uid, generation)
            self._set_past(found.past, generation)
            # worlds that keep failing before their next multiple would leave the newest checkpoint ever further behind
            self._catch_up_step = max(self.inventory.newest + self._checkpoint.save.every_steps, self._newest + 1)
            return found.state
        saved = read_integrity(found)
        assert saved is not None  # noqa: S101  # it was verified above
        self._restored = self._newest = saved.step
        self._restored_from_backup = stores.is_copy(found)
        self._take_inventory(search, saved.job_uid, saved.generation)
        self._set_past(saved.provenance, saved.generation if saved.job_uid == self._world.job_uid else 0)
        return self._load(found.location, saved, state, fewer)

    def _take_inventory(self, search: RestoreSearch, job_uid: str, generation: int) -> None:
        best = self._checkpoint.keep.best
        origin = job_uid, generation, self._newest
        self.inventory = CheckpointInventory.from_manifests(search.saved, origin, best).broadcast(self._peers)
        self._bests = BestSteps(best, self.inventory.losses)

    def _set_past(self, past: Provenance, since: int) -> None:
        self.past = extend_provenance(past, self._world, self._batch_size, since, self._newest, self.tier)

    @property
    def tier(self) -> Tier:
        """Return the tier that the state was restored from; `durable` also for a start from scratch."""
        if self.restored_snapshot is not None:
            return "ram"
        return "backup" if self._restored_from_backup else "durable"

    @property
    def newest(self) -> int:
        """Return the newest step that this world saved or restored; 0: none."""
        return self._newest

    def is_due(self, step: int) -> bool:
        """Return whether a save is due after a step: at the step interval, or once no save was made for that long."""
        return step % self._checkpoint.save.every_steps == 0 or (
            self._catch_up_step is not None and step >= self._catch_up_step
        )

    def is_best(self, measured: Mapping[str, float]) -> bool:
        """Return whether a step with these held-out losses is to be saved as one of the best."""
        return self._bests.is_best(measured)

    def save_signal(self) -> Signal:
        """Return SAVE once for each save that is due by time; only process 0 signals, because clocks differ."""
        if self._peers.process != 0 or self._has_signaled or (self._commit and self._commit.is_alive()):
            return Signal.NONE
        has_failed = self.is_failing if self._outcome is None else isinstance(self._outcome, FailedSave)
        every = self._checkpoint.save.every
        pause = min(RETRY_SECONDS if has_failed else inf, seconds(every) if every else inf)
        if time.monotonic() - self._last_save_at < pause:
            return Signal.NONE
        self._has_signaled = True
        return Signal.SAVE

    def save(self, step: int, state: State, measured: Mapping[str, float] | None = None) -> None:
        """Copy the state and write it in the background. Waits for the previous save, and raises as `wait` does.

        `measured` are the held-out losses after this step, by evaluation name.
        """
        self.wait()
        self._last_save_at, self._has_signaled, self._catch_up_step = time.monotonic(), False, None
        finite = {name: loss for name, loss in (measured or {}).items() if isfinite(loss)}
        self._bests.add(step, finite)
        self._tried = step, finite
        writing = self._committer.begin(len(self._world.rollbacks), step, _saved_items(state))
        self._commit = threading.Thread(
            target=self._finish, args=(step, writing, hash_shapes(state), finite), name=f"commit-{step}", daemon=True
        )
        self._commit.start()

    def wait(self) -> None:
        """Wait until the newest save is committed, or has failed.

        Raises:
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        if self._commit:
            self._committer.lift_rate_limit()
            self._commit.join()
            self._commit = None
        self.raise_background_error()
        match self._outcome:
            case FailedSave(step=failed):
                self._bests.remove(failed)
                self.is_failing = True
            case int(step):
                self._newest, self.is_failing = step, False
        self._outcome = None

    def save_until_success(self, step: int, state: State) -> None:
        """Wait until a step is saved, and retry until it is: no other work is left.

        A retry saves the held-out losses of the failed save.
        """
        self.wait()
        while self.is_failing:
            time.sleep(FINAL_RETRY_SECONDS)
            tried, measured = self._tried
            self.save(step, state, measured if tried == step else None)
            self.wait()

    def wait_for_backup(self) -> None:
        """Wait until the newest step that this world saved is copied to the backup store, or its copy has failed."""
        if self._backup and self._saved:
            self._backup.wait_for_last(*self._saved, self._restored)

    def raise_background_error(self) -> None:
        """Raise the error of the background thread, if any."""
        if self._error:
            raise self._error

    def _load(self, folder: str, saved: Integrity, state: State, replica: SingleReplicaRestore | None) -> State:
        """Return a saved state. A state without a loss window, saved before spike detection, gets an empty one."""
        if replica and saved.state == hash_shapes(state):
            return replica.load(folder)
        form = next(form for form in _accepted_forms(state) if hash_shapes(form) == saved.state)
        restored = State(**self._committer.orbax.restore(folder, _saved_items(form)))
        if state.window is None or restored.window is not None:
            return restored
        return restored._replace(window=empty_window_like(state.window))

    def _finish(self, step: int, writing: PendingStep, state: str, measured: Mapping[str, float]) -> None:
        record = Integrity(
            job_uid=self._world.job_uid,
            generation=self._world.generation,
            step=step,
            data=self._data,
            state=state,
            lineage=len(self._world.rollbacks),
            seed=self._seed,
            skipped=self.past.skipped,
            batch_sizes=self.past.batch_sizes,
            spans=self.past.spans,
            evaluations=dict(measured),
            files={},
        )
        try:
            saved = self._committer.finish(writing, record)
        except SaveFailedError as error:
            self._tell_failure(step, str(error))
        except Exception as error:  # noqa: BLE001  # the training thread raises it
            self._error = error
        else:
            self._saved = writing.folder, saved
            self._outcome = step
            self._events.send(AgentEvent(committed=step))
            self._clean_up(writing.folder, saved)

    def _clean_up(self, folder: StepFolder, saved: Integrity) -> None:
        """Begin to copy the step that was just saved, if a copy is due, and delete steps that are not kept."""
        needed = [self._restored]
        if self._backup:
            try:
                self._backup.copy_if_due(folder, saved, self._restored)
            except JaxRuntimeError as error:
                self._error = error
                return
            needed += self._backup.steps_in_use
        if self._peers.process == 0:
            try:
                delete_expired(self._store, self._fence, self._checkpoint.keep, saved.step, needed)
            except TrainingError as error:
                self._error = error

    def _tell_failure(self, step: int, message: str) -> None:
        LOG.warning("save failed step=%d error=%s", step, message)
        self._outcome = FailedSave(step=step, message=message[:MAX_MESSAGE])
        self._events.send(AgentEvent(failed_save=self._outcome))


def _host_name(world: World, process: int) -> str:
    """Return the name of a host as messages show it."""
    member = next((member for member in world.members if member.process == process), None)
    return f"host {member.host} of slice {member.slice}" if member else f"process {process}"


def _accepted_forms(state: State) -> list[State]:
    """Return the forms in which a state may have been saved, its own first."""
    return [state] if state.window is None else [state, state._replace(window=None)]


def _saved_items(state: State) -> dict[str, Any]:
    """Return the parts of a state that are saved: absent parts are left out."""
    return {name: value for name, value in state._asdict().items() if value is not None}
