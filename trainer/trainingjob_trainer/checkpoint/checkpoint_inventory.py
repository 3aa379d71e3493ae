"""The inventory of checkpoints when a world resumes: process 0 reads storage, and all processes share its result.

The other processes do not read it themselves, because their view of a shared folder may be older.
"""

from collections.abc import Iterable

from pydantic import Field

from trainingjob_api.base import Open
from trainingjob_api.spec.checkpoint import KeepBest
from trainingjob_trainer.checkpoint.manifest import Integrity, SavedFrozen
from trainingjob_trainer.checkpoint.retention import select_losses
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import StepRecord

AGREE_SECONDS = 300
"""Seconds for which the first process waits for the inventory of process 0."""


class CheckpointInventory(Open):
    """The checkpoints up to the step that a world resumes from."""

    newest: int = 0
    """The newest of them; 0: none."""
    measured: dict[str, float] | None = None
    """Losses of the evaluations of the step that the world resumes from, by name. None: that step is not saved."""
    losses: dict[int, float] = Field(default={})
    """Their losses in the evaluation that selects the best checkpoints, where measured."""

    frozen: SavedFrozen | None = None
    """The frozen tensors to which the newest of them of the same job refers. None: it has them itself."""

    @property
    def is_saved(self) -> bool:
        """Return whether the step that the world resumes from is saved."""
        return self.measured is not None

    @classmethod
    def from_manifests(
        cls, saved: Iterable[Integrity], origin: tuple[str, int, int], best: KeepBest | None
    ) -> "CheckpointInventory":
        """Return the inventory of a world that resumes from `origin`: a job UID, a generation and a step."""
        records = {_origin(record): record for record in saved if record.step <= origin[2]}
        own = records.get(origin)
        of_job = [record for record in records.values() if record.job_uid == origin[0]]
        newest = max(of_job, key=lambda record: (record.step, record.generation), default=None)
        return cls(
            newest=max((record.step for record in records.values()), default=0),
            measured=own.evaluations if own else None,
            frozen=newest.frozen if newest else None,
            losses=select_losses(best, {record.step: record.evaluations for record in records.values()}),
        )

    def broadcast(self, peers: ProcessGroup) -> "CheckpointInventory":
        """Return the inventory of process 0, on all processes of a world.

        Raises:
            JaxRuntimeError: another process is gone.
        """
        inventory_json = self.model_dump_json(exclude_defaults=True) if peers.process == 0 else ""
        return CheckpointInventory.model_validate_json(peers.exchange("saved", inventory_json, AGREE_SECONDS)[0])


def _origin(record: StepRecord) -> tuple[str, int, int]:
    return record.job_uid, record.generation, record.step
