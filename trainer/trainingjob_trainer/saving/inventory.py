"""What is saved as a world goes on from a step: process 0 looked once, and all know the same.

A shared folder may look older to the others, so they are not asked what they see.
"""

from collections.abc import Iterable

from pydantic import Field

from trainingjob_api.base import Open
from trainingjob_api.running import KeepBest
from trainingjob_trainer.history import Record
from trainingjob_trainer.saving.integrity import Integrity
from trainingjob_trainer.saving.retention import find_losses
from trainingjob_trainer.world import Peers

AGREE_SECONDS = 300
"""How long the first process to ask what is saved waits for the answer."""


class Inventory(Open):
    """The saved steps, up to the one that a world goes on from."""

    newest: int = 0
    """The last of them; 0: there is none."""
    evaluated: frozenset[str] | None = None
    """Which evaluations were made of the step that the world goes on from. None: it is not saved."""
    losses: dict[int, float] = Field(default={})
    """Their losses on the text that decides which are best, of those that have one."""

    @property
    def is_saved(self) -> bool:
        """Return whether the step that the world goes on from is."""
        return self.evaluated is not None

    @classmethod
    def take(cls, saved: Iterable[Integrity], origin: tuple[str, int, int], best: KeepBest | None) -> "Inventory":
        """Return what all records together say to a world that goes on from `origin`: its job, generation and step."""
        records = {_origin(record): record for record in saved if record.step <= origin[2]}
        own = records.get(origin)
        return cls(
            newest=max((record.step for record in records.values()), default=0),
            evaluated=frozenset(own.evaluations) if own else None,
            losses=find_losses(best, {record.step: record.evaluations for record in records.values()}),
        )

    def agree(self, peers: Peers) -> "Inventory":
        """Return that of process 0, on all processes of a world.

        Raises:
            JaxRuntimeError: another process is gone.
        """
        mine = self.model_dump_json(exclude_defaults=True) if peers.process == 0 else ""
        return Inventory.model_validate_json(peers.exchange("saved", mine, AGREE_SECONDS)[0])


def _origin(record: Record) -> tuple[str, int, int]:
    return record.job_uid, record.generation, record.step
