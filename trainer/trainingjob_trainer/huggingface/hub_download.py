"""Published weights and adapters from the hub, below the job's folder. A job with its own checkpoint deletes them."""

import logging
from typing import NamedTuple

from trainingjob_api.huggingface.peft import CONFIG_FILE as ADAPTER_CONFIG_FILE
from trainingjob_api.huggingface.peft import WEIGHTS_FILE as ADAPTER_FILE
from trainingjob_api.spec.checkpoint import AdapterSource, HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_trainer.huggingface.companion_files import COMPANIONS, FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import HubFolder
from trainingjob_trainer.huggingface.weights_folder import INDEX_FILE
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
SOURCE = "spec.checkpoint.initializeFrom"
COMMIT_LENGTH = 12


class Download(NamedTuple):
    """What is downloaded from a repository, and where to."""

    folder: str
    """The folder of the files, below `checkpoint.uri`."""
    record: str
    """The repository, revision and commit of the files. It exists only if they are complete."""
    patterns: tuple[str, ...]
    field: str
    token_field: str


WEIGHTS = Download(
    f"{FOLDER}/weights",
    f"{FOLDER}/download.json",
    ("model.safetensors", "model-*.safetensors", INDEX_FILE, *COMPANIONS),
    f"{SOURCE}.huggingFace.repository",
    f"{SOURCE}.huggingFace.token",
)
ADAPTER = Download(
    f"{FOLDER}/adapter",
    f"{FOLDER}/adapter-download.json",
    (ADAPTER_CONFIG_FILE, ADAPTER_FILE),
    f"{SOURCE}.adapter.repository",
    "HF_TOKEN in spec.runtime.env",
)


def download_sources(source: InitializeFrom, own: Store, *, is_leader: bool) -> None:
    """Download the repositories that a source names; other processes than the leader wait for their files.

    Raises:
        TrainingError: the hub refuses a repository or does not respond, or the files cannot be written.
    """
    if source.hugging_face and source.hugging_face.repository:
        download_files(WEIGHTS, source.hugging_face, own, is_leader=is_leader)
    if source.adapter and source.adapter.repository:
        download_files(ADAPTER, source.adapter, own, is_leader=is_leader)


def download_files(
    download: Download, source: HuggingFaceSource | AdapterSource, own: Store, *, is_leader: bool
) -> None:
    """Download the files of a repository if they are not complete yet; other processes than the leader wait for them.

    Raises:
        TrainingError: the hub refuses the repository or does not respond, or the files cannot be written.
    """
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository or "", revision, "model", download.field, download.token_field)
    _folder(download, own).download(hub, is_leader=is_leader)


def delete_downloads(own: Store) -> None:
    """Delete downloaded files, if there are any. A failure is logged: nothing depends on it."""
    for download in (WEIGHTS, ADAPTER):
        try:
            if any(f"{FOLDER}/{entry.name}" == download.folder for entry in own.list_folder(FOLDER)):
                _folder(download, own).delete()
                LOG.info("deleted downloaded files folder=%s", own.locate(download.folder))
        except OSError as error:
            LOG.warning("cannot delete downloaded files folder=%s error=%s", own.locate(download.folder), error)


def locate_files(download: Download, path: str | None, own: Store) -> str:
    """Return the root of the store that holds the files of a source. `path` None: they are downloaded."""
    return path or own.locate(download.folder)


def read_commit(download: Download, own: Store) -> str:
    """Return the commit of downloaded files; empty: there are none."""
    return _folder(download, own).read_commit()


def name_source(download: Download, source: HuggingFaceSource | AdapterSource, own: Store) -> str:
    """Return the name of a source in messages: a folder, or a repository at the downloaded commit."""
    return source.path or f"{source.repository} at commit {read_commit(download, own)[:COMMIT_LENGTH]}"


def _folder(download: Download, own: Store) -> HubFolder:
    return HubFolder(own, download.folder, download.record, download.patterns)
