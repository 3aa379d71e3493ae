"""Agreement of replicas on the members of a round: one record, which the first replica that may create it creates.

Process 0 of each replica takes part. No replica is special, and none can prevent the others from a decision for longer
than a round may wait.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from trainingjob_trainer.replicas.round_files import FoundRecord, RoundFiles, RoundMember, RoundRecord

LOG = logging.getLogger(__name__)
UNFINISHED_SECONDS = 60.0
"""Seconds for which a record without content counts as being written."""
POLL_SECONDS = 0.2

type LiveSlices = Callable[[], frozenset[int]]
"""Returns the slices whose replicas train or synchronize, as the operator last reported them to the agent."""


class ReplicaBehindError(Exception):
    """The rounds that this replica lacks are deleted, or it follows another record: it must restore a checkpoint."""


@dataclass(frozen=True)
class RoundAgreement:
    """The agreement of the replicas of a job.

    A round waits for the contributions of all live slices, but at most `wait_seconds` after this replica's own.
    """

    files: RoundFiles
    job_uid: str
    live_slices: LiveSlices
    wait_seconds: float
    poll_seconds: float = POLL_SECONDS
    unfinished_seconds: float = UNFINISHED_SECONDS

    def find_next(self, after: int, base: str) -> RoundRecord | None:  # None: no later round has ended
        """Return the record of the first round that has ended after a given one, and that starts from its base.

        Raises:
            ReplicaBehindError: the record has another base: rounds between them are deleted, or this replica differs.
            OSError, UntrustedFileError: as for `RoundFiles`.
        """
        return _check_base(self.files.find_next_record(after), base)

    def agree(self, number: int, base: str) -> RoundRecord:
        """Return the record of a round to which this replica has contributed, as soon as there is one.

        Raises:
            ReplicaBehindError: the record has another base, or a later round was decided without this one.
            OSError, UntrustedFileError: as for `RoundFiles`.
        """
        start = time.monotonic()
        unfinished_since: float | None = None  # None: no record is unfinished
        while True:
            found, now = self.files.find_record(number), time.monotonic()
            if record := _check_base(found.record, base):
                return record
            unfinished_since = (unfinished_since or now) if found.is_unfinished else None
            is_being_written = unfinished_since is not None and now - unfinished_since < self.unfinished_seconds
            members = self._choose_members(number, base, is_overdue=now - start >= self.wait_seconds)
            if members and not is_being_written:
                self._create(RoundRecord(job_uid=self.job_uid, round=number, base=base, members=members), found)
                unfinished_since = None
            else:
                time.sleep(self.poll_seconds)

    def wait_to_join(self, after: int, base: str, own_slice: int) -> RoundRecord | None:
        """Wait for the end of the round that others train, and return its record. None: no other replica trains.

        A replica that began in the middle of a round would keep all others waiting at its end.

        Raises:
            ReplicaBehindError: as for `find_next`.
            OSError, UntrustedFileError: as for `RoundFiles`.
        """
        while True:
            has_others = bool(self.live_slices() - {own_slice})
            if (record := self.find_next(after, base)) or not has_others:
                return record
            time.sleep(self.poll_seconds)

    def _choose_members(self, number: int, base: str, *, is_overdue: bool) -> tuple[RoundMember, ...]:
        """Return the members that a record would have now. Empty: the round waits for other replicas."""
        found = self.files.list_contributions(number)
        missing = self.live_slices() - {replica.slice for replica in found}
        if missing and not is_overdue:
            return ()
        latest: dict[int, RoundMember] = {}
        for replica in sorted(found):
            start, member = found[replica]
            if start == base:
                latest[replica.slice] = member
        if missing:
            LOG.warning("a round ends without live replicas round=%d slices=%s", number, sorted(missing))
        return tuple(latest[slice_number] for slice_number in sorted(latest))

    def _create(self, record: RoundRecord, found: FoundRecord) -> None:
        """Create a record, unless another replica has created it, or it was deleted."""
        self._check_newest(record.round)
        with suppress(FileExistsError):
            self.files.create_record(record, found.next_attempt)

    def _check_newest(self, number: int) -> None:
        """Check that no round after one without a record has one."""
        newest = self.files.find_newest_record(number)
        if newest is not None:
            raise ReplicaBehindError(f"round {number} has no members any more, and round {newest} has")


def _check_base(record: RoundRecord | None, base: str) -> RoundRecord | None:
    if record is not None and record.base != base:
        raise ReplicaBehindError(f"round {record.round} has members with other outer parameters")
    return record
