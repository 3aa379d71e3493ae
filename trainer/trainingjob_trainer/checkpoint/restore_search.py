"""The search for the state that a new world resumes from: the newest intact step of the job's history.

Copies on the backup store and snapshots in host memory are ranked by the same rule. For the same step, the snapshot
comes first, because it is already in memory, and the copy comes last. Process 0 chooses (`candidates.py`), and all
processes verify the choice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainingjob_api.world import World
from trainingjob_trainer.checkpoint.candidates import FROM_SNAPSHOT, Candidates, Expected, Stores
from trainingjob_trainer.checkpoint.damage_reports import DamageReports
from trainingjob_trainer.checkpoint.manifest import Integrity, ReadRetry
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.checkpoint.verify import VERIFY_SECONDS, VerifyResult, verify
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import State


class SnapshotSource(Protocol):
    """The snapshots that the hosts of a world hold together."""

    @property
    def newest(self) -> Key | None: ...  # noqa: D102  # None: no snapshot is complete

    def load(self, key: Key) -> State | None: ...  # noqa: D102  # None: it is damaged, and is not offered again
    def past(self, key: Key) -> Provenance: ...  # noqa: D102


@dataclass(frozen=True)
class RestoredSnapshot:
    """A state that was restored from host memory."""

    key: Key
    state: State
    past: Provenance


class RestoreSearch:
    """The collective search for the step to restore."""

    def __init__(
        self,
        stores: Stores,
        world: World,
        peers: ProcessGroup,
        events: AgentEvents,
        memory: SnapshotSource | None = None,
        *,
        takeover: bool,
        readers: Sequence[int] | None = None,  # None: all processes read
        slice_number: int | None = None,  # None: the world trains the whole job
    ) -> None:
        self._stores = stores
        self._peers = peers
        self._memory = memory
        self._readers = readers
        self._read_retry = ReadRetry()
        self._reports = DamageReports(peers, events)
        self._candidates = Candidates(
            stores, world, self._reports, self._read_retry, takeover=takeover, slice_number=slice_number
        )

    @property
    def saved(self) -> list[Integrity]:
        """Return the manifests in the checkpoint folder, later steps included; none on other processes than 0."""
        return self._candidates.saved

    def find(self, expected: Expected) -> StepFolder | RestoredSnapshot | None:  # None: start from scratch
        """Return the newest intact step, as a folder or a state, and delete later steps that no history needs.

        Raises:
            TrainingError: every step is damaged, or the step has other data, another data order or another model, or
                this world is fenced off.
            OSError: storage does not answer.
        """
        if self._peers.process == 0:
            self._candidates.claim()
        attempt = 0
        while True:
            snapshot = self._memory.newest if self._memory else None
            selection = self._candidates.choose(expected, snapshot) if self._peers.process == 0 else ""
            choice = self._reports.broadcast(f"restore/{attempt}", selection)
            if not choice:
                return None
            if choice == FROM_SNAPSHOT:
                assert self._memory is not None  # noqa: S101  # process 0 has found a snapshot in it
                assert snapshot is not None  # noqa: S101  # and all processes find the same one
                if loaded := self._memory.load(snapshot):
                    self._clean_up_after(f"recalled/{attempt}", snapshot[1])
                    return RestoredSnapshot(snapshot, loaded, self._memory.past(snapshot))
            elif self._is_intact(attempt, folder := self._stores.load(choice)):
                self._clean_up_after(f"verified/{attempt}", folder.step)
                return folder
            attempt += 1

    def _is_intact(self, attempt: int, folder: StepFolder) -> bool:
        """Return whether all processes find their share of a step intact; if not, skip the step."""
        result = verify(folder, self._peers, self._readers, self._read_retry)
        payload = self._peers.exchange(f"verify/{attempt}", json.dumps(result), VERIFY_SECONDS)
        findings = [VerifyResult(*json.loads(text)) for text in payload]
        if damage := next((finding.damage for finding in findings if finding.damage), ""):
            self._reports.report_together(folder.step, self._stores.message_prefix(folder) + damage)
            if self._peers.process == 0:
                self._candidates.quarantine(folder, damage)
        elif failed_read := next((finding for finding in findings if finding.unreadable), None):
            self._candidates.skip_unreadable(folder, OSError(failed_read.error_number, failed_read.unreadable))
        else:
            return True
        return False

    def _clean_up_after(self, name: str, step: int) -> None:
        if self._peers.process == 0:
            self._candidates.clean_up_after(step)
        self._reports.broadcast(name)
