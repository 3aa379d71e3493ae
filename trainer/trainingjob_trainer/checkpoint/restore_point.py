"""The search for the state that a new world resumes from: the newest intact step of the job's history.

Copies on the backup store and snapshots in host memory are ranked by the same rule. For the same step, the snapshot
comes first, because it is already in memory, and the copy comes last.

A damaged step is reported, quarantined and skipped. A step that stays unreadable for a minute is treated the same way,
but only after another step was read completely. Otherwise storage itself fails, and nothing is changed. If no intact
step remains, the job fails: it never starts from scratch silently.
"""

import errno
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from trainingjob_agent.shared_files import MANIFEST_FILE
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Damage, FailureReason
from trainingjob_api.world import STORAGE_TIERS, World
from trainingjob_trainer.checkpoint.commit import quarantine_step
from trainingjob_trainer.checkpoint.error_exchange import describe_error
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import (
    Integrity,
    ReadRetry,
    find_damage,
    find_irregular_entry,
    read_integrity,
    select_share,
)
from trainingjob_trainer.checkpoint.saved_steps import SavedStep, delete_later_steps, list_saved, rank_restorable
from trainingjob_trainer.checkpoint.store.opening import open_store
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance, has_known_lineage
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import State

LOG = logging.getLogger(__name__)
VERIFY_SECONDS = 1800
FROM_SNAPSHOT = "memory"
"""Takes the place of a folder where the snapshot is newer."""
STEP_MISSING = "it is not there any more"


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


class VerifyResult(NamedTuple):
    """The result of verifying this process's share of a step: damage, or a failed read."""

    damage: str = ""
    unreadable: str = ""
    error_number: int = 0
    """The `errno` of the failed read."""


class RestoreSearch:
    """The collective search for the step to restore, below `root` or `backup`."""

    def __init__(
        self,
        root: Path,
        world: World,
        peers: ProcessGroup,
        events: AgentEvents,
        memory: SnapshotSource | None = None,
        *,
        takeover: bool,
        backup: Path | None = None,
        readers: Sequence[int] | None = None,  # None: all processes read
    ) -> None:
        self._readers = readers
        self._root = root
        self._backup = backup
        self._memory = memory
        self._world = world
        self._peers = peers
        self._events = events
        self._takeover = takeover
        self._fence = Fence(open_store(root), world)
        self._patience = ReadRetry()
        self._seed: int | None = None
        self._damaged: list[Damage] = []
        self._unreadable: dict[Path, OSError] = {}
        self._not_quarantined: set[Path] = set()
        """Damaged steps that could not be quarantined, on a read-only store."""
        self.saved: list[Integrity] = []
        """The manifests that process 0 last found below `root`, later steps included; empty on other processes."""

    def find(
        self, data: str, states: Collection[str], seed: int | None = None
    ) -> Path | RestoredSnapshot | None:  # None: start from scratch
        """Return the newest intact step, as a folder or a state, and delete later steps that no history needs.

        `data` is the hash of the job's token index. `states` are the hashes of the state shapes that the job accepts.
        `seed` is the seed of the data order; None: any.

        Raises:
            TrainingError: every step is damaged, or the step has other data, another data order or another model, or
                this world is fenced off.
            OSError: storage does not answer.
        """
        if self._peers.process == 0:
            self._fence.claim()
        self._seed = seed
        attempt = 0
        while True:
            snapshot = self._memory.newest if self._memory else None
            choice = self._broadcast_choice(attempt, data, states, snapshot)
            if not choice:
                return None
            if choice == FROM_SNAPSHOT:
                assert self._memory is not None  # noqa: S101  # process 0 has found a snapshot in it
                assert snapshot is not None  # noqa: S101  # and all processes find the same one
                if loaded := self._memory.load(snapshot):
                    self._clean_up_after(f"recalled/{attempt}", snapshot[1])
                    return RestoredSnapshot(snapshot, loaded, self._memory.past(snapshot))
            elif self._is_intact(attempt, Path(choice)):
                self._clean_up_after(f"verified/{attempt}", int(Path(choice).name))
                return Path(choice)
            attempt += 1

    def _is_intact(self, attempt: int, folder: Path) -> bool:
        """Return whether all processes find their share of a step intact; if not, skip the step."""
        mine = verify(folder, self._peers, self._readers, self._patience)
        payload = self._peers.exchange(f"verify/{attempt}", json.dumps(mine), VERIFY_SECONDS)
        findings = [VerifyResult(*json.loads(text)) for text in payload]
        if damage := next((one.damage for one in findings if one.damage), ""):
            self._report_damage(int(folder.name), self._copy_prefix(folder) + damage)
            if self._peers.process == 0:
                self._quarantine(folder)
        elif unread := next((one for one in findings if one.unreadable), None):
            self._unreadable[folder] = OSError(unread.error_number, unread.unreadable)
        else:
            return True
        return False

    def _clean_up_after(self, name: str, step: int) -> None:
        """Clean up after the chosen step on process 0: report and quarantine unreadable steps, delete later ones."""
        known = len(self._damaged)
        if self._peers.process == 0:
            for folder, error in self._unreadable.items():
                if int(folder.name) > step:
                    self._report_damage(
                        int(folder.name), f"{self._copy_prefix(folder)}it cannot be read: {error.strerror}"
                    )
                    self._quarantine(folder)
            self._clear_after(step)
        self._broadcast_damage(name, known)

    def _broadcast_damage(self, name: str, known: int, said: str = "") -> str:
        """Broadcast a text of process 0, and report on all processes the damage that it found since `known`."""
        new = [(one.step, one.message) for one in self._damaged[known:]]
        told, damaged = json.loads(self._peers.exchange(name, json.dumps([said, new]), VERIFY_SECONDS)[0])
        if self._peers.process != 0:
            for step, message in damaged:
                self._report_damage(step, message)
        return str(told)

    def _broadcast_choice(self, attempt: int, data: str, states: Collection[str], snapshot: Key | None) -> str:
        """Return the choice of process 0 on all processes, after they reported the damage that it found."""
        known = len(self._damaged)
        choice = self._choose(data, states, snapshot) if self._peers.process == 0 else ""
        return self._broadcast_damage(f"restore/{attempt}", known, choice)

    def _choose(self, data: str, states: Collection[str], snapshot: Key | None) -> str:
        """Return the best step's folder, or `FROM_SNAPSHOT`; empty: no step exists, and none is missing."""
        saved = list_saved(self._root, self._patience)
        readable = self._quarantine_damaged([*saved, *self._list_copies()])
        self.saved = [one.integrity for one in readable if one.integrity and not self._is_copy(one.folder)]
        best = next(iter(rank_restorable(readable, self._world, takeover=self._takeover)), None)
        if self._world.committed > (best.step if best else 0):
            self._report_missing_step(
                [one for one in saved if one.step == self._world.committed], is_all=not (best or snapshot)
            )
        if best and best.integrity:
            self._check_usable(best.integrity, data, states)
            _check_seed(best.integrity, self._seed)
            if snapshot is None or snapshot < self._rank(best.integrity):
                return str(best.folder)
        if snapshot is not None:
            return FROM_SNAPSHOT
        for folder, error in self._unreadable.items():
            raise storage_error(error, f"reading {folder}", str(self._root)) from error
        self._reject_scratch_start()
        self._clear_after(0)
        return ""

    def _quarantine_damaged(self, saved: list[SavedStep]) -> list[SavedStep]:
        """Return the readable steps, after the damaged ones were reported and quarantined."""
        there = [one for one in saved if one.folder not in self._not_quarantined]
        for one in there:
            if one.damage:
                self._report_damage(one.step, self._copy_prefix(one.folder) + one.damage)
                self._quarantine(one.folder)
            elif one.unreadable:
                self._unreadable[one.folder] = one.unreadable
        return [one for one in there if one.folder not in self._unreadable]

    def _check_usable(self, best: Integrity, data: str, states: Collection[str]) -> None:
        """Raise TrainingError where training cannot resume from a step under this spec."""
        if not has_known_lineage(best, self._world):
            raise TrainingError(
                FailureReason.STORAGE,
                f"step {best.step} is of lineage {best.lineage}, of which this world does not know: "
                "status.rollbacks of the job was lost, and with it which samples are left out. Give the folder to "
                "a new job with `checkpoint.takeover: true`: it goes on from there, without them.",
                path="spec.checkpoint.uri",
                value=self._root,
            )
        if best.data != data:
            raise TrainingError(
                FailureReason.DATA,
                f"step {best.step} was trained on other rows (index {best.data[:12]}) than this spec "
                f"gives ({data[:12]}): text, tokenizer or sequence length differ. Where an older trainer saved it, so "
                "may the rules for hidden files, links and truncation. Give the job the same data, or another "
                "checkpoint folder and these parameters with `checkpoint.initializeFrom`.",
                path="spec.data.train",
                value=data[:12],
            )
        if best.state not in states:
            raise TrainingError(
                FailureReason.CONFIG,
                f"step {best.step} holds the state of another model. The sections model and precision, and "
                "protection.spikes where there was one, must be those that it was trained with, or the job needs "
                "another checkpoint folder.",
                path="spec.model",
            )

    def _report_missing_step(self, there: list[SavedStep], *, is_all: bool) -> None:
        """Report that the last committed step is missing, where no file shows it."""
        is_reported = any(one.step == self._world.committed for one in self._damaged)
        if not (there or is_reported or is_all):  # if nothing remains, the failure reports it
            self._report_damage(self._world.committed, STEP_MISSING)

    def _reject_scratch_start(self) -> None:
        """Raise TrainingError if a step was saved before: a start from scratch would hide the loss."""
        restored = max((span.first - 1 for span in self._world.lineage if span.tier in STORAGE_TIERS), default=0)
        parents = [rollback.parent for rollback in self._world.rollbacks[-1:]]
        known = max(restored, self._world.committed, *parents)
        if not (self._damaged or known):
            return
        damage = "; ".join(f"step {one.step}: {one.message}" for one in self._damaged)
        where = f"{self._root} or {self._backup}" if self._backup else str(self._root)
        missing = f", though step {known} was {'restored' if known == restored else 'saved'} before."
        raise TrainingError(
            FailureReason.STORAGE,
            f"no saved step in {where} is whole, so there is nothing to go on from"
            + (f" ({damage})." if damage else missing)
            + " Bring the folder back from a copy, or start a new job from scratch in another folder.",
            path="spec.checkpoint.uri",
            value=self._root,
        )

    def _rank(self, saved: Integrity) -> Key:
        """Return the rank of a step against snapshots; a step of another job ranks below all own ones."""
        return (saved.generation if saved.job_uid == self._world.job_uid else 0), saved.step

    def _report_damage(self, step: int, message: str) -> None:
        """Report a damaged step. All processes do, because the operator may read any report first."""
        damage = Damage(step=step, message=message)
        self._damaged.append(damage)
        self._events.send(AgentEvent(damaged=damage))

    def _quarantine(self, folder: Path) -> None:
        try:
            quarantine_step(folder, self._world.generation)
        except OSError as error:
            if not self._is_copy(folder):
                raise
            LOG.warning("a damaged copy cannot be moved aside, and is passed over error=%s", error)
            self._not_quarantined.add(folder)

    def _clear_after(self, step: int) -> None:
        """Delete later steps of this job, which no history holds, and temporary folders: training repeats them.

        Later steps that this job did not save are reported and quarantined: this job may not delete them.
        """
        self._fence.check()
        self._clear_store_after(self._root, step)
        if self._backup:
            try:
                self._clear_store_after(self._backup, step)
            except OSError as error:  # no world restores them
                LOG.warning("later copies cannot be deleted error=%s", error)

    def _clear_store_after(self, root: Path, step: int) -> None:
        for one in delete_later_steps(root, step, self._world.job_uid):
            if one.folder not in self._not_quarantined:
                why = one.damage or "another job has saved it"
                self._report_damage(
                    one.step, f"{self._copy_prefix(one.folder)}{why}, and training goes on from step {step}"
                )
                self._quarantine(one.folder)

    def _list_copies(self) -> list[SavedStep]:
        """Return the steps on the backup store; none if it does not answer, because training does not depend on it."""
        try:
            return list_saved(self._backup, self._patience) if self._backup else []
        except OSError as error:
            LOG.warning("the backup folder cannot be read error=%s", error)
            return []

    def _is_copy(self, folder: Path) -> bool:
        return self._backup is not None and folder.is_relative_to(self._backup)

    def _copy_prefix(self, folder: Path) -> str:
        """Return the prefix of a message about a copy. Empty: the step is a checkpoint itself."""
        return f"its copy in {self._backup}: " if self._is_copy(folder) else ""


def _check_seed(best: Integrity, seed: int | None) -> None:
    """Raise TrainingError where a step was trained with another data order than the spec gives."""
    if seed is None or best.seed in (None, seed):
        return
    raise TrainingError(
        FailureReason.CONFIG,
        f"must be {best.seed}, that of the job which saved step {best.step:,}: in another order some rows of the epoch "
        f"would come twice and others never. Nearest legal value: {best.seed}. To train in another order, begin "
        "another job with `checkpoint.initializeFrom`.",
        path="spec.training.seed",
        value=seed,
    )


def verify(
    folder: Path, peers: ProcessGroup, readers: Sequence[int] | None = None, patience: ReadRetry | None = None
) -> VerifyResult:
    """Verify this process's share of a step's files, and return the damage or the failed read.

    `readers` are the processes that share the files, by default all. `patience` retries failed reads; None: a new one.
    """
    readers = range(peers.num_processes) if readers is None else readers
    patience = patience or ReadRetry()
    if peers.process not in readers:
        return VerifyResult()
    try:
        integrity = patience.read(lambda: read_integrity(folder))
        if integrity is None:
            return VerifyResult(
                f"{MANIFEST_FILE} is not there on every host: is the folder on storage that all hosts share?"
            )
        if peers.process == readers[0] and (foreign := patience.read(lambda: find_irregular_entry(folder))):
            return VerifyResult(foreign)
        for name in select_share(sorted(integrity.files), readers.index(peers.process), len(readers)):
            wanted = {name: integrity.files[name]}
            if damage := patience.read(lambda wanted=wanted: find_damage(folder, wanted)):  # type: ignore[misc]
                return VerifyResult(damage)
    except ValueError as error:
        return VerifyResult(str(error))
    except OSError as error:
        return VerifyResult(unreadable=describe_error(error), error_number=error.errno or errno.EIO)
    return VerifyResult()
