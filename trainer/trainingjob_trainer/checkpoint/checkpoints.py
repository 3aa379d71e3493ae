"""The checkpoints of a job, as the training loop uses them: restore, save when a save is due, wait.

Orbax writes in the background below `<uri>/lineage-<n>/<step>.*`; each rollback opens a new lineage. Then all hosts
hash the files, and process 0 writes `integrity.json`, which commits the step. Only then is the step reported as
committed. This package decides which steps exist, which may be restored and which are deleted, because Orbax's own
bookkeeping knows neither generations nor damage.
"""

import time
from collections.abc import Mapping
from math import isfinite
from typing import Protocol

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import FailedSave
from trainingjob_api.world import RunConfig, Tier, World
from trainingjob_trainer.checkpoint.backup import Backup
from trainingjob_trainer.checkpoint.candidates import Stores
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.checkpoint.commit import Committer
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.items import StateShapes, describe_state, saved_items
from trainingjob_trainer.checkpoint.kept_exports import KeptExports, find_kept_export
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.checkpoint.policy import SavePolicy
from trainingjob_trainer.checkpoint.restore import RestoredState, RunningJob, restore_newest
from trainingjob_trainer.checkpoint.restore_search import SnapshotSource
from trainingjob_trainer.checkpoint.retention import BestSteps
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.checkpoint.upkeep import Upkeep
from trainingjob_trainer.checkpoint.writer import CheckpointWriter
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import Signal, State
from trainingjob_trainer.store.opening import open_store

FINAL_RETRY_SECONDS = 10.0
"""Seconds between retries when no step is left to train."""


class SavingReplica(Protocol):
    """The replica that a world trains, as its checkpoints use it. Replicas are equal at the end of a round."""

    @property
    def is_saver(self) -> bool: ...  # noqa: D102  # False: another member of the newest round saves it
    def attach_outer(self, state: State) -> State: ...  # noqa: D102
    def delete_rounds(self, saved: int) -> None: ...  # noqa: D102


class Checkpoints:
    """The checkpoints of a job, as one process of one world writes and reads them. `data` is the token cache's hash.

    `slice_number` is that of a replica. None: the world trains the whole job. A replica restores into a state with the
    items of the outer optimizer, and sets `replica` before it saves.
    """

    def __init__(
        self,
        root: str,
        config: RunConfig,
        world: World,
        peers: ProcessGroup,
        data: str,
        events: AgentEvents,
        slice_number: int | None = None,
    ) -> None:
        checkpoint, name = config.spec.checkpoint, _host_name(world, peers.process)
        durable = open_store(root)
        self._fence = fence = Fence(durable, world, slice_number)
        backup = Backup(config, fence, peers, events, name) if checkpoint.backup else None
        stores = Stores(durable, backup.store if backup else None)
        self._committer = Committer(durable, peers, name, fence, resolve_network(config.spec).frozen_names)
        self._job = RunningJob(config, world, stores, peers, data, events, slice_number)
        export = find_kept_export(config)
        exports = KeptExports(export, config, durable, fence, peers, events, name) if export else None
        self._upkeep = Upkeep(checkpoint.keep, fence, peers, backup, exports)
        self._writer = CheckpointWriter(self._committer, events, self._after_commit)
        self._policy = SavePolicy.from_spec(checkpoint.save)
        self._best_steps = BestSteps(checkpoint.keep.best, {})
        self._restored = RestoredState()
        self._shapes: StateShapes | None = None  # None: no state was restored or saved yet
        self._last_save_at = time.monotonic()
        self._has_signaled = False
        self._newest_left = self._last_committed = 0
        self.replica: SavingReplica | None = None  # None: the world trains the whole job

    def restore(
        self, state: State, memory: SnapshotSource | None = None, replica: SingleReplicaRestore | None = None
    ) -> State | None:  # None: start from scratch
        """Return the newest intact state of the job's history, from storage or memory, with the layout of `state`.

        `replica` restores a checkpoint by broadcast from one replica. None: all processes read.

        Raises:
            TrainingError: checkpoints exist, and none can be used.
        """
        self._shapes = describe_state(state)  # now, because training waits for a save
        self._restored = restored = restore_newest(self._job, state, memory, replica)
        self._upkeep.restored = restored.checkpoint_step
        self._fence.resumed_step = restored.step
        self._committer.reuse_frozen(restored.frozen, is_verified=restored.is_frozen_verified)
        self._best_steps = BestSteps(self._job.config.spec.checkpoint.keep.best, restored.inventory.losses)
        if restored.snapshot:
            self._policy = self._policy.after_snapshot(restored.step, restored.inventory.newest)
        if self._job.world.probation:
            self._policy = self._policy.on_probation(restored.step)
        return restored.state

    @property
    def tier(self) -> Tier:
        """Return the tier that the state was restored from; `durable` also for a start from scratch."""
        return self._restored.tier

    @property
    def restored_snapshot(self) -> Key | None:
        """Return the snapshot that was restored. None: a checkpoint was restored, or nothing."""
        return self._restored.snapshot

    @property
    def past(self) -> Provenance:
        """Return the past of every state that this world saves; empty before `restore`."""
        return self._restored.past

    @property
    def inventory(self) -> CheckpointInventory:
        """Return the checkpoints that existed when this world resumed; empty before `restore`."""
        return self._restored.inventory

    @property
    def newest(self) -> int:
        """Return the newest step that this world saved, left to another replica, or restored; 0: none."""
        return max(self._writer.newest or self._restored.step, self._newest_left)

    @property
    def is_failing(self) -> bool:
        """Return whether the newest awaited save has failed: the same on all processes at the same step."""
        return self._writer.is_failing

    def is_due(self, step: int) -> bool:
        """Return whether a save is due after a step, apart from saves by time."""
        return self._policy.is_due_at(step)

    def is_best(self, measured: Mapping[str, float]) -> bool:
        """Return whether a step with these held-out losses is to be saved as one of the best."""
        return self._best_steps.is_best(measured)

    def save_signal(self) -> Signal:
        """Return SAVE once for each save that is due by time; only process 0 signals, because clocks differ."""
        if self._job.peers.process != 0 or self._has_signaled or self._writer.is_writing:
            return Signal.NONE
        elapsed = time.monotonic() - self._last_save_at
        self._has_signaled = self._policy.is_due_after(elapsed, is_failing=self._writer.has_failed)
        return Signal.SAVE if self._has_signaled else Signal.NONE

    def save(self, step: int, state: State, measured: Mapping[str, float] | None = None) -> None:
        """Copy the state and write it in the background. Waits for the previous save, and raises as `wait` does.

        `measured` are the held-out losses after this step, by evaluation name. A replica that does not save the step
        counts it as saved: the log of rounds has it until another replica has saved it.
        """
        self.wait()
        self._last_save_at, self._has_signaled, self._policy = time.monotonic(), False, self._policy.after_save()
        finite = {name: loss for name, loss in (measured or {}).items() if isfinite(loss)}
        self._best_steps.add(step, finite)
        if self.replica and not self.replica.is_saver:
            self._newest_left, self._writer.is_failing = step, False
            return
        whole = self.replica.attach_outer(state) if self.replica else state
        self._shapes = self._shapes or describe_state(whole)
        self._writer.begin(self._job.new_record(step, self._shapes, self.past, finite), saved_items(whole))

    def wait(self) -> None:
        """Wait until the newest save is committed, or has failed.

        Raises:
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        match self._writer.wait():
            case FailedSave(step=failed):
                self._best_steps.remove(failed)

    def save_until_success(self, step: int, state: State) -> None:
        """Wait until a step is saved, and retry until it is: no other work is left.

        A retry saves the held-out losses of the failed save.
        """
        self.wait()
        while self.is_failing:
            time.sleep(FINAL_RETRY_SECONDS)
            record = self._writer.begun
            self.save(step, state, record.evaluations if record and record.step == step else None)
            self.wait()

    def wait_for_backup(self) -> None:
        """Wait until the newest step that this world saved is copied to the backup store, or its copy has failed."""
        self._upkeep.wait_for_backup()

    def finish_exports(self) -> None:
        """Export all kept steps before the job ends, if the spec exports them; raise TrainingError if one fails."""
        if self.replica is None or self.replica.is_saver:
            self._upkeep.finish_exports()

    def raise_background_error(self) -> None:
        """Raise the error of the background thread, if any."""
        self._writer.raise_error()

    def _after_commit(self, folder: StepFolder, record: Integrity) -> None:
        if self.replica is None:
            self._upkeep.after_commit(folder, record)
            return
        # A replica that joins may be reading the checkpoint before this one, and then needs the rounds after it.
        previous, self._last_committed = self._last_committed or self._restored.step, record.step
        self._upkeep.after_commit(folder, record, needed=[previous])
        if self._job.peers.process == 0:
            self.replica.delete_rounds(previous)


def _host_name(world: World, process: int) -> str:
    """Return the name of a host as messages show it."""
    member = next((member for member in world.members if member.process == process), None)
    return f"host {member.host} of slice {member.slice}" if member else f"process {process}"
