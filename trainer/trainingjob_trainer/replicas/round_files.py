"""The rounds of replicas as objects of a store: a log of deltas, with one record of the members of each round.

    replicas/lineage-<n>/<step>/slice-<i>-<generation>/host-<p>           shards of a delta
    replicas/lineage-<n>/<step>/slice-<i>-<generation>/contribution.json  where each shard is; written last
    replicas/lineage-<n>/<step>/members-<attempt>.json                    the members of the round; created exclusively

A round has the number of the step after which it ends, so that an edit of the interval leaves the log readable.
Deltas are little-endian float32. Each shard of a replica is written once, by the first process that holds it.
"""

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from trainingjob_agent.checkpoint_layout import lineage_folder, parse_lineage
from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_number, parse_untrusted_json
from trainingjob_api.base import Open
from trainingjob_api.world import Count
from trainingjob_trainer.store.committed_steps import list_committed
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
ROUNDS_FOLDER = "replicas"
CONTRIBUTION_FILE = "contribution.json"
KEPT_ROUNDS = 2
"""The newest rounds, which are kept even if a checkpoint has them: a replica may be reading them."""
DELTA_DTYPE = np.dtype("<f4")
BASE_BYTES = hashlib.sha256().digest_size
FIRST_BASE = bytes(BASE_BYTES).hex()
"""The base of the first round, before which no replica has trained."""
REPLICA_NAME = re.compile(r"slice-(?P<slice>[0-9]+)-(?P<generation>[0-9]+)")
RECORD_NAME = re.compile(r"members-(?P<attempt>[0-9]+)[.]json")


class DamagedDeltaError(ValueError):
    """A delta that the record of `round` names is missing, or is not what its replica wrote."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.round = number


class Replica(NamedTuple):
    """A replica: a slice, and the generation of its world. Of one slice, the later generation counts."""

    slice: int
    generation: int

    @property
    def folder(self) -> str:
        """Return the name of its folder in a round."""
        return f"slice-{self.slice}-{self.generation}"


class DeltaShard(Open):
    """Position of a shard in the object of a process, in bytes, and the CRC-32 of its bytes."""

    process: Count
    start: Count
    stop: Count
    crc32: Count


class Contribution(Open):
    """The delta of a replica in a round. `base` is that of the outer parameters from which the replica started."""

    job_uid: str
    round: Count
    slice: Count
    generation: Count
    base: str
    shards: dict[str, DeltaShard]

    @property
    def replica(self) -> Replica:
        """Return the replica that wrote it."""
        return Replica(self.slice, self.generation)


class RoundMember(Open):
    """A member of a round. `contribution` is the SHA-256 of its `contribution.json`."""

    slice: Count
    generation: Count
    contribution: Annotated[str, Field(max_length=64)]

    @property
    def replica(self) -> Replica:
        """Return the replica."""
        return Replica(self.slice, self.generation)


class RoundRecord(Open):
    """The members of a round, in the order of their slices, and the base from which they started."""

    job_uid: str
    round: Count
    base: str
    members: Annotated[tuple[RoundMember, ...], Field(min_length=1)]

    def next_base(self) -> str:
        """Return the base of the next round: equal bases mean that equal deltas were applied in equal order."""
        return hashlib.sha256(_dump(self)).hexdigest()


class FoundRecord(NamedTuple):
    """The record of a round, if one is complete, and the number that the next attempt to create one has."""

    record: RoundRecord | None
    next_attempt: int

    @property
    def is_unfinished(self) -> bool:
        """Return whether a record was created and has no content yet."""
        return self.record is None and self.next_attempt > 0


class RoundFiles:
    """The rounds of one lineage of a job.

    All methods raise `OSError` if the store does not respond, and `UntrustedFileError` for a record in another format.
    """

    def __init__(self, store: Store, job_uid: str, lineage: int) -> None:
        self._store = store
        self._job_uid = job_uid
        self._lineage = lineage
        self._root = f"{ROUNDS_FOLDER}/{lineage_folder(lineage)}"
        self.uri = store.root
        """The root of the store."""
        self.location = store.locate(self._root)
        """The path or URI of the folder of all rounds."""

    def list_rounds(self) -> list[int]:
        """Return the rounds that have a folder, ascending."""
        entries = self._store.list_folder(self._root, is_current=True)
        return sorted(number for entry in entries if (number := parse_number(entry.name)) is not None)

    def find_next_record(self, after: int) -> RoundRecord | None:  # None: no later round has ended
        """Return the record of the first round after a given one that has a complete record."""
        later = (number for number in self.list_rounds() if number > after)
        return next((record for number in later if (record := self.find_record(number).record)), None)

    def find_newest_record(self, after: int) -> int | None:  # None: no later round has a record
        """Return the newest round after a given one that has a complete record."""
        later = (number for number in reversed(self.list_rounds()) if number > after)
        return next((number for number in later if self.find_record(number).record), None)

    def write_delta(
        self, number: int, replica: Replica, process: int, deltas: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, DeltaShard]:
        """Write the shards of a process, in the given order, and return their places."""
        places: dict[str, DeltaShard] = {}
        self._store.write(
            f"{self._folder(number)}/{replica.folder}/host-{process}", _write_shards(process, deltas, places)
        )
        return places

    def write_contribution(self, number: int, replica: Replica, base: str, shards: Mapping[str, DeltaShard]) -> None:
        """Complete the delta of a replica, all of whose processes have written their shards."""
        contribution = Contribution(
            job_uid=self._job_uid,
            round=number,
            slice=replica.slice,
            generation=replica.generation,
            base=base,
            shards=dict(shards),
        )
        name = f"{self._folder(number)}/{replica.folder}/{CONTRIBUTION_FILE}"
        self._store.write(name, (_dump(contribution),))

    def list_contributions(self, number: int) -> dict[Replica, tuple[str, RoundMember]]:
        """Return the base of each complete contribution of a round, and its replica as a member.

        A contribution in another format is logged and left out.
        """
        found = {}
        for replica in self._list_replicas(number):
            with suppress(FileNotFoundError):  # it is being written
                content = self._read_contribution(number, replica)
                try:
                    contribution = self._parse_contribution(number, replica, content)
                except UntrustedFileError as error:
                    LOG.warning("ignored a contribution round=%d replica=%s error=%s", number, replica, error)
                    continue
                member = RoundMember(
                    slice=replica.slice, generation=replica.generation, contribution=_hash_bytes(content)
                )
                found[replica] = contribution.base, member
        return found

    def find_record(self, number: int) -> FoundRecord:
        """Return the record of a round: that of the latest attempt whose content is complete."""
        folder = self._folder(number)
        names = (RECORD_NAME.fullmatch(entry.name) for entry in self._store.list_folder(folder, is_current=True))
        attempts = sorted(attempt for name in names if name and (attempt := parse_number(name["attempt"])) is not None)
        for attempt in reversed(attempts):
            content = self._store.read(_record_name(folder, attempt), MAX_JSON_BYTES)
            if content.endswith(b"\n"):
                return FoundRecord(self._parse_record(number, attempt, content), attempts[-1] + 1)
        return FoundRecord(None, attempts[-1] + 1 if attempts else 0)

    def create_record(self, record: RoundRecord, attempt: int) -> None:
        """Create the record of a round.

        Raises:
            FileExistsError: another replica has created it.
        """
        self._store.create_exclusive(_record_name(self._folder(record.round), attempt), _dump(record) + b"\n")

    def read_contribution(self, number: int, member: RoundMember) -> Contribution:
        """Return the contribution of a member.

        Raises:
            DamagedDeltaError: it is missing, or not that of the record.
        """
        name = f"{number}/{member.replica.folder}/{CONTRIBUTION_FILE}"
        try:
            content = self._read_contribution(number, member.replica)
            if _hash_bytes(content) == member.contribution:
                return self._parse_contribution(number, member.replica, content)
        except (FileNotFoundError, UntrustedFileError) as error:
            raise DamagedDeltaError(number, f"{name} cannot be read: {error}") from error
        raise DamagedDeltaError(number, f"{name} has changed since the round ended")

    def read_delta(self, contribution: Contribution, shard: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a shard of the delta of a member, float32.

        Raises:
            DamagedDeltaError: it is missing, or has changed since it was written.
        """
        folder, place = f"{contribution.round}/{contribution.replica.folder}", contribution.shards.get(shard)
        if place is None or place.stop - place.start != int(np.prod(shape, dtype=np.int64)) * DELTA_DTYPE.itemsize:
            raise DamagedDeltaError(contribution.round, f"{folder} does not have {shard}")
        name = f"{self._root}/{folder}/host-{place.process}"
        try:
            content = self._store.read_range(name, place.start, place.stop)
        except FileNotFoundError as error:
            raise DamagedDeltaError(contribution.round, f"{folder}/host-{place.process} is missing") from error
        if len(content) != place.stop - place.start or zlib.crc32(content) != place.crc32:
            raise DamagedDeltaError(contribution.round, f"{folder}: {shard} has changed since it was written")
        return np.frombuffer(content, DELTA_DTYPE).reshape(shape)

    def is_saved(self, number: int) -> bool:
        """Return whether a checkpoint of the end of a round or of a later step is committed in this lineage."""
        return any(
            saved.lineage == self._lineage and saved.step.step >= number for saved in list_committed(self._store)
        )

    def delete_rounds(self, saved: int) -> None:
        """Delete the rounds up to a step that is saved in a checkpoint, except the newest `KEPT_ROUNDS`.

        Call it once this lineage has a checkpoint. The rounds of former lineages, which a rollback has made void, are
        deleted too.
        """
        for number in self.list_rounds()[:-KEPT_ROUNDS]:
            if number <= saved:
                self.delete_round(number)
        for entry in self._store.list_folder(ROUNDS_FOLDER, is_current=True):
            lineage = parse_lineage(entry.name)
            if lineage is not None and lineage < self._lineage:
                self._store.delete_tree(f"{ROUNDS_FOLDER}/{entry.name}")

    def delete_round(self, number: int) -> None:
        """Delete a round. Its records come last: a replica that is behind must not decide the round again."""
        for replica in self._list_replicas(number):
            self._store.delete_tree(f"{self._folder(number)}/{replica.folder}")
        self._store.delete_tree(self._folder(number))

    def _folder(self, number: int) -> str:
        return f"{self._root}/{number}"

    def _list_replicas(self, number: int) -> Iterator[Replica]:
        for entry in self._store.list_folder(self._folder(number), is_current=True):
            match = REPLICA_NAME.fullmatch(entry.name)
            numbers = [parse_number(match[name]) for name in ("slice", "generation")] if match else [None]
            if entry.is_folder and None not in numbers:
                yield Replica(*(number for number in numbers if number is not None))

    def _read_contribution(self, number: int, replica: Replica) -> bytes:
        return self._store.read(f"{self._folder(number)}/{replica.folder}/{CONTRIBUTION_FILE}", MAX_JSON_BYTES)

    def _parse_contribution(self, number: int, replica: Replica, content: bytes) -> Contribution:
        contribution = _parse(Contribution, CONTRIBUTION_FILE, content)
        if (contribution.job_uid, contribution.round, contribution.replica) != (self._job_uid, number, replica):
            raise UntrustedFileError(f"{CONTRIBUTION_FILE} is that of another job, round or replica")
        return contribution

    def _parse_record(self, number: int, attempt: int, content: bytes) -> RoundRecord:
        name = _record_name(str(number), attempt)
        record = _parse(RoundRecord, name, content)
        slices = [member.slice for member in record.members]
        if (record.job_uid, record.round) != (self._job_uid, number) or slices != sorted(set(slices)):
            raise UntrustedFileError(f"{name} is not a record of this round")
        return record


def _record_name(folder: str, attempt: int) -> str:
    return f"{folder}/members-{attempt}.json"


def _write_shards(
    process: int, deltas: Iterable[tuple[str, np.ndarray]], places: dict[str, DeltaShard]
) -> Iterator[bytes]:
    """Yield the bytes of each shard, and add its place."""
    start = 0
    for name, delta in deltas:
        content = delta.astype(DELTA_DTYPE, copy=False).tobytes()
        places[name] = DeltaShard(process=process, start=start, stop=start + len(content), crc32=zlib.crc32(content))
        start += len(content)
        yield content


def _parse[M: Open](model: type[M], name: str, content: bytes) -> M:
    try:
        return model.model_validate(parse_untrusted_json(name, content))
    except ValidationError as error:
        raise UntrustedFileError(f"{name} cannot be read: {error.errors(include_input=False)[0]['msg']}") from error


def _dump(value: Open) -> bytes:
    return json.dumps(value.model_dump(mode="json"), sort_keys=True).encode()


def _hash_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
