"""Files of a repository of the hub, downloaded once below the job's folder, where all hosts read them.

The leading process downloads, and the next attempt resumes an interrupted download. The other processes wait for the
record of the commit, which is written last.

Into a bucket, one file after the other is downloaded to the disk of the pod, and uploaded.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from trainingjob_api.base import is_bucket
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.runtime.errors import storage_error
from trainingjob_trainer.store.port import Store, has_object

LOG = logging.getLogger(__name__)
MAX_RECORD_BYTES = 1 << 20
POLL_SECONDS = 2.0
CHUNK_BYTES = 8 << 20


def read_record(own: Store, name: str) -> dict[str, object]:
    """Return the record of a complete download; empty: there is none."""
    try:
        record = json.loads(own.read(name, MAX_RECORD_BYTES))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def download_names(own: Store, folder: str, hub: HubRepository, commit: str, names: Sequence[str]) -> None:
    """Download files of a commit, by their paths, into a folder of a store that no other commit uses.

    Raises:
        TrainingError: the hub refuses the repository or does not respond.
        OSError: the files cannot be written.
    """
    if not is_bucket(own.root):
        hub.download_files(commit, own.locate(folder), names)
        own.delete_tree(f"{folder}/.cache")  # of the client, to resume
        return
    for name in names:
        if not has_object(own, f"{folder}/{name}"):  # an interrupted download has left it, complete
            with TemporaryDirectory(prefix="hub-") as local:
                hub.download_files(commit, local, [name])
                own.write(f"{folder}/{name}", _read_chunks(Path(local, name)))


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


@dataclass(frozen=True)
class HubFolder:
    """A folder of a store for the files of a repository that match a pattern."""

    own: Store
    files: str
    """The name of the folder."""
    record: str
    """The name of an object with repository, revision and commit of the files. It exists only if they are complete."""
    patterns: Sequence[str]

    def download(self, hub: HubRepository, *, is_leader: bool) -> None:
        """Download the files if they are not complete yet; other processes than the leader wait for them.

        Raises:
            TrainingError: the hub refuses the repository or does not respond, or the files cannot be written.
        """
        expected = {"repository": hub.name, "revision": hub.revision}
        try:
            if is_leader and not self._is_complete(expected):
                self.own.delete(self.record)
                commit = hub.find_commit()
                LOG.info("downloading repository=%s revision=%s commit=%s", hub.name, hub.revision, commit)
                self._download(hub, commit)
                self.own.write(self.record, [json.dumps({**expected, "commit": commit}).encode()])
            while not self._is_complete(expected):
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise storage_error(error, f"the download into {self.own.locate(self.files)}", self.own.root) from error

    def _download(self, hub: HubRepository, commit: str) -> None:
        if not is_bucket(self.own.root):
            # By its commit, an incomplete folder is never taken for a complete one.
            hub.download(commit, self.own.locate(self.files), self.patterns)
            return
        if read_record(self.own, self._started).get("commit") != commit:
            self.own.delete_tree(self.files)
            self.own.write(self._started, [json.dumps({"commit": commit}).encode()])
        names = [
            name for name in hub.list_files(commit) if any(fnmatchcase(name, pattern) for pattern in self.patterns)
        ]
        download_names(self.own, self.files, hub, commit, names)

    @property
    def _started(self) -> str:
        """Return the name of an object with the commit of the files of a download into a bucket."""
        return f"{self.record}.started"

    def read_commit(self) -> str:
        """Return the commit of the files; empty: they are not complete."""
        return str(read_record(self.own, self.record).get("commit", ""))

    def delete(self) -> None:
        """Delete the files and their record."""
        self.own.delete(self.record)
        self.own.delete(self._started)
        self.own.delete_tree(self.files)

    def _is_complete(self, expected: dict[str, str]) -> bool:
        record = read_record(self.own, self.record)
        return all(record.get(key) == value for key, value in expected.items())
