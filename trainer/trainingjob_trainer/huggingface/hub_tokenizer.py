"""The tokenizer of a repository of the hub, or of a bucket.

Its files stay below the job's folder, so every world has the same.
"""

import hashlib
import time
from pathlib import Path
from tempfile import gettempdir

from trainingjob_api.base import is_bucket
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import HUGGING_FACE
from trainingjob_trainer.huggingface.companion_files import FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import POLL_SECONDS, HubFolder
from trainingjob_trainer.huggingface.tokenizer_files import FOLDER_FILES, published_name
from trainingjob_trainer.runtime.errors import TrainingError, describe_refusal, is_permanent, storage_error
from trainingjob_trainer.store.object_file import StoredObject, find_object, list_objects, open_object
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store, has_object

FIELD = "spec.tokenizer.huggingFace"
PATH_FIELD = "spec.tokenizer.path"
CHUNK_BYTES = 1 << 20


def resolve_tokenizer(spec: TrainingJobSpec, own: Store, *, is_leader: bool) -> TrainingJobSpec:
    """Return a spec whose tokenizer has the path of its files: downloaded, if they are in a repository or a bucket.

    Other processes than the leader wait for them.

    Raises:
        TrainingError: the hub or the bucket refuses or does not respond, or the files cannot be written.
    """
    if spec.tokenizer.path is not None and is_bucket(spec.tokenizer.path):
        path = _copy_from_bucket(spec, spec.tokenizer.path, own, is_leader=is_leader)
        return _replace_path(spec, path)
    source = spec.tokenizer.hugging_face
    if source is None:
        return spec
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository, revision, "model", f"{FIELD}.repository", f"{FIELD}.token")
    name = hashlib.sha256(f"{source.repository}@{revision}".encode()).hexdigest()[:16]
    folder = HubFolder(own, f"{FOLDER}/tokenizer/{name}", f"{FOLDER}/tokenizer/{name}.json", FOLDER_FILES)
    folder.download(hub, is_leader=is_leader)
    return _replace_path(spec, _open_files(own, folder.files))


def _replace_path(spec: TrainingJobSpec, path: str) -> TrainingJobSpec:
    return spec.model_copy(update={"tokenizer": spec.tokenizer.model_copy(update={"path": path})})


def _copy_from_bucket(spec: TrainingJobSpec, uri: str, own: Store, *, is_leader: bool) -> str:
    """Return the path of the copy of a tokenizer in a bucket. The record is written last, so the copy never changes."""
    is_folder = spec.tokenizer.type == HUGGING_FACE
    name = hashlib.sha256(f"{spec.tokenizer.type} {uri}".encode()).hexdigest()[:16]
    folder, record = f"{FOLDER}/tokenizer/{name}", f"{FOLDER}/tokenizer/{name}.json"
    try:
        if is_leader and not has_object(own, record):
            for stored in _find_objects(uri, is_folder=is_folder):
                file = stored.uri.rpartition("/")[2] if is_folder else published_name(spec.tokenizer)
                own.write(f"{folder}/{file}", _read_object(uri, stored))
            own.write(record, (b"{}",))
        while not has_object(own, record):
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise storage_error(error, f"copying the tokenizer to {own.locate(folder)}", own.root) from error
    return (
        _open_files(own, folder) if is_folder else str(Path(_open_files(own, folder), published_name(spec.tokenizer)))
    )


def _open_files(own: Store, folder: str) -> str:
    """Return a local folder with the files of a folder of the job: a copy on this host, if the job is in a bucket.

    The files of a folder never change, so processes of one host may share a copy, and replace its files by equal ones.
    """
    if not is_bucket(own.root):
        return own.locate(folder)
    name = hashlib.sha256(own.locate(folder).encode()).hexdigest()[:16]
    local = Path(gettempdir(), f"tokenizer-{name}")
    copies = open_store(local)
    try:
        for file in own.list_files(folder):
            if not has_object(copies, file):
                copies.write(file, own.read_chunks(f"{folder}/{file}"))
    except OSError as error:
        raise storage_error(error, f"copying the tokenizer to {local}", own.root) from error
    return str(local)


def _find_objects(uri: str, *, is_folder: bool) -> list[StoredObject]:
    """Return the files of a tokenizer.

    Raises:
        TrainingError: there are none, or the bucket refuses or does not respond.
    """
    try:
        if not is_folder:
            return [find_object(uri)]
        root = uri.rstrip("/")
        found = [one for one in list_objects(root) if one.uri.removeprefix(f"{root}/") in FOLDER_FILES]
    except OSError as error:
        raise _bucket_error(uri, error) from error
    if not found:
        message = f"{root} must be a folder with {FOLDER_FILES[0]}, but has none of its files. Correct the URI."
        raise TrainingError(FailureReason.DATA, message, path=PATH_FIELD, value=uri)
    return found


def _read_object(uri: str, stored: StoredObject) -> list[bytes]:
    try:
        with open_object(stored) as file:
            return list(iter(lambda: file.read(CHUNK_BYTES), b""))
    except OSError as error:
        raise _bucket_error(uri, error) from error


def _bucket_error(uri: str, error: OSError) -> TrainingError:
    message = describe_refusal(f"the tokenizer {uri} cannot be read", error)
    return TrainingError(FailureReason.DATA, message, path=PATH_FIELD, value=uri, fatal=is_permanent(error))
