"""Published weights from the hub, downloaded once below the job's folder, where all hosts read them.

The first process downloads, and an interrupted download is resumed by the next attempt. The other processes wait for
the record of the commit, which is written last. A job that has its own checkpoint deletes the files.
"""

import json
import logging
import time

from trainingjob_api.spec.checkpoint import HuggingFaceSource
from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_trainer.huggingface.companion_files import COMPANIONS, FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.weights_folder import INDEX_FILE, MAX_JSON_BYTES
from trainingjob_trainer.runtime.errors import storage_error
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FIELD = "spec.checkpoint.initializeFrom.huggingFace"
WEIGHTS = f"{FOLDER}/weights"
"""The folder of the files, below `checkpoint.uri`."""
RECORD = f"{FOLDER}/download.json"
"""The repository, revision and commit of the files. It exists only if they are complete."""
PATTERNS = ("model.safetensors", "model-*.safetensors", INDEX_FILE, *COMPANIONS)
POLL_SECONDS = 2.0


def download_weights(source: HuggingFaceSource, own: Store, *, is_leader: bool) -> None:
    """Download the files of a repository if they are not complete yet; other processes than the leader wait for them.

    Raises:
        TrainingError: the hub refuses the repository or does not respond, or the files cannot be written.
    """
    wanted = {"repository": source.repository, "revision": source.revision or DEFAULT_REVISION}
    try:
        if is_leader and not _is_complete(own, wanted):
            own.delete(RECORD)
            commit = _download(source, own)
            own.write(RECORD, [json.dumps({**wanted, "commit": commit}).encode()])
        while not _is_complete(own, wanted):
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise storage_error(error, f"the download into {own.locate(WEIGHTS)}", own.root) from error


def delete_download(own: Store) -> None:
    """Delete downloaded files, if there are any. A failure is logged: nothing depends on it."""
    try:
        if any(entry.name == WEIGHTS.rpartition("/")[2] for entry in own.list_folder(FOLDER)):
            own.delete(RECORD)
            own.delete_tree(WEIGHTS)
            LOG.info("deleted downloaded weights folder=%s", own.locate(WEIGHTS))
    except OSError as error:
        LOG.warning("cannot delete downloaded weights folder=%s error=%s", own.locate(WEIGHTS), error)


def weights_location(source: HuggingFaceSource, own: Store) -> str:
    """Return the root of the store that holds the files of a source."""
    return source.path or own.locate(WEIGHTS)


def read_commit(own: Store) -> str:
    """Return the commit of the downloaded files; empty: there are none."""
    record = _read_record(own)
    return str(record.get("commit", ""))


def _download(source: HuggingFaceSource, own: Store) -> str:
    """Download the files of a repository, and return their commit.

    Raises:
        TrainingError: the hub refuses the repository, or does not respond.
        OSError: the files cannot be written.
    """
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository or "", revision, "model", f"{FIELD}.repository", f"{FIELD}.token")
    commit = hub.find_commit()
    LOG.info("downloading repository=%s revision=%s commit=%s", hub.name, revision, commit)
    # By its commit, an incomplete folder is never taken for a complete one.
    hub.download(commit, own.locate(WEIGHTS), PATTERNS)
    return commit


def _is_complete(own: Store, wanted: dict[str, str | None]) -> bool:
    record = _read_record(own)
    return all(record.get(key) == value for key, value in wanted.items())


def _read_record(own: Store) -> dict[str, object]:
    """Return the record of a complete download; empty: there is none."""
    try:
        record = json.loads(own.read(RECORD, MAX_JSON_BYTES))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
