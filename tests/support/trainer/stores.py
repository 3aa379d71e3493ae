"""A fast store and a slow one, and worlds of one process that save to the first and copy to the second."""

from pathlib import Path
from typing import Any

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.shelf import list_steps
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import FROZEN, describe, make_state
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Damage
from trainingjob_api.world import Rollback, RunConfig, Span
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.restore_search import SnapshotSource
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State

FIRST = Span(generation=1, first=1)


class Stores:
    """A checkpoint folder and a backup folder, and worlds of one process that use them."""

    def __init__(self, folder: Path, *, frozen: bool = False) -> None:
        self.frozen = frozen
        self.fast = folder / "fast/run"
        self.slow = folder / "slow/run"
        self.log = folder / "events"
        self._file = self.log.open("wb", buffering=0)
        self.events = AgentEvents(self._file.fileno())

    def config(self, uid: str = UID, *, takeover: bool = False, last: int = 1, **changes: Any) -> RunConfig:
        copies = {"uri": str(self.slow), "every": "0s", "keep": 3, **changes}
        changed = {"checkpoint__backup": copies, "checkpoint__takeover": takeover} | (FROZEN if self.frozen else {})
        spec = make_spec(self.fast, self.fast, **changed)
        spec["checkpoint"]["keep"] = {"last": last}
        return make_config(spec, uid=uid)

    def open(
        self,
        generation: int = 1,
        *lineage: Span,
        rollbacks: tuple[Rollback, ...] = (),
        slice_number: int | None = None,
        **changes: Any,
    ) -> "World":
        world = make_world(generation, 1, lineage, changes.get("uid", UID), rollbacks)
        config, peers = self.config(**changes), ProcessGroup(0, 1)
        return World(self, Checkpoints(self.fast, config, world, peers, "index", self.events, slice_number))

    def told(self) -> list[AgentEvent]:
        return [AgentEvent.model_validate_json(line) for line in self.log.read_text().splitlines()]

    @property
    def copied(self) -> list[int]:
        return [event.copied for event in self.told() if event.copied is not None]

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [(event.failed_copy.step, event.failed_copy.message) for event in self.told() if event.failed_copy]

    @property
    def failing(self) -> list[tuple[int, str]]:
        return [(event.failed_save.step, event.failed_save.message) for event in self.told() if event.failed_save]

    @property
    def damaged(self) -> list[Damage]:
        return [event.damaged for event in self.told() if event.damaged]

    def names(self) -> list[str]:
        return list_steps(self.slow / "lineage-0")

    def close(self) -> None:
        self._file.close()


class World:
    """A world of one process that saves."""

    def __init__(self, stores: Stores, checkpoints: Checkpoints) -> None:
        self.stores = stores
        self.checkpoints = checkpoints

    def save(self, *steps: int) -> "World":
        """Save steps one after the other, each after the copy before it came to its end."""
        for step in steps:
            self.checkpoints.save(step, make_state((1, 1), step, frozen=self.stores.frozen))
            self.checkpoints.wait()
            self.join()
        return self

    def join(self) -> None:
        backup = self.checkpoints._upkeep.backup
        assert backup
        if thread := backup._thread:
            thread.join(ENDLESS_SECONDS)

    def restore(self, memory: SnapshotSource | None = None) -> State | None:
        return self.checkpoints.restore(describe(make_state((1, 1), frozen=self.stores.frozen)), memory)


def largest(folder: Path) -> Path:
    """Return the largest file of a step: one that holds numbers."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "integrity.json")
    return max(files, key=lambda path: path.stat().st_size)
