"""Published weights from the hub, below the job's folder. A job that has its own checkpoint deletes them."""

import logging

from trainingjob_api.spec.checkpoint import HuggingFaceSource
from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_trainer.huggingface.companion_files import COMPANIONS, FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import HubFolder
from trainingjob_trainer.huggingface.weights_folder import INDEX_FILE
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FIELD = "spec.checkpoint.initializeFrom.huggingFace"
WEIGHTS = f"{FOLDER}/weights"
"""The folder of the files, below `checkpoint.uri`."""
RECORD = f"{FOLDER}/download.json"
PATTERNS = ("model.safetensors", "model-*.safetensors", INDEX_FILE, *COMPANIONS)


def download_weights(source: HuggingFaceSource, own: Store, *, is_leader: bool) -> None:
    """Download the files of a repository if they are not complete yet; other processes than the leader wait for them.

    Raises:
        TrainingError: the hub refuses the repository or does not respond, or the files cannot be written.
    """
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository or "", revision, "model", f"{FIELD}.repository", f"{FIELD}.token")
    _folder(own).download(hub, is_leader=is_leader)


def delete_download(own: Store) -> None:
    """Delete downloaded files, if there are any. A failure is logged: nothing depends on it."""
    try:
        if any(entry.name == WEIGHTS.rpartition("/")[2] for entry in own.list_folder(FOLDER)):
            _folder(own).delete()
            LOG.info("deleted downloaded weights folder=%s", own.locate(WEIGHTS))
    except OSError as error:
        LOG.warning("cannot delete downloaded weights folder=%s error=%s", own.locate(WEIGHTS), error)


def weights_location(source: HuggingFaceSource, own: Store) -> str:
    """Return the root of the store that holds the files of a source."""
    return source.path or own.locate(WEIGHTS)


def read_commit(own: Store) -> str:
    """Return the commit of the downloaded files; empty: there are none."""
    return _folder(own).read_commit()


def _folder(own: Store) -> HubFolder:
    return HubFolder(own, WEIGHTS, RECORD, PATTERNS)
