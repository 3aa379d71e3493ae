"""The tokenizer of a repository of the hub, or of a bucket, and the chat template of a bucket.

Its files stay below the job's folder, so every world has the same.
"""

import errno
import hashlib
import os
import stat
import time
from pathlib import Path, PurePosixPath
from tempfile import gettempdir
from typing import NamedTuple

from trainingjob_api.base import is_bucket
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import HUGGING_FACE, Tokenizer
from trainingjob_trainer.huggingface.companion_files import FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import POLL_SECONDS, HubFolder
from trainingjob_trainer.huggingface.tokenizer_files import FOLDER_FILES, published_name
from trainingjob_trainer.runtime.errors import TrainingError, describe_refusal, is_permanent, storage_error
from trainingjob_trainer.store.object_file import StoredObject, find_object, list_objects, open_object
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store, has_object

FIELD = "spec.tokenizer.huggingFace"
PATH_FIELD, TEMPLATE_FIELD = "spec.tokenizer.path", "spec.tokenizer.chatTemplate.path"
CHUNK_BYTES = 1 << 20
COPY_PREFIX = "tokenizer-"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def resolve_tokenizer(spec: TrainingJobSpec, own: Store, *, is_leader: bool) -> TrainingJobSpec:
    """Return a spec whose tokenizer has the paths of its files: downloaded, if they are in a repository or a bucket.

    Other processes than the leader wait for them.

    Raises:
        TrainingError: the hub or the bucket refuses or does not respond, or the files cannot be written.
    """
    tokenizer, template = spec.tokenizer, spec.tokenizer.chat_template
    if template and is_bucket(template.path):
        file = PurePosixPath(template.path).with_stem("template").name
        copy = _copy_from_bucket(
            _BucketFiles(TEMPLATE_FIELD, "chatTemplate", template.path, file), own, is_leader=is_leader
        )
        tokenizer = tokenizer.model_copy(update={"chat_template": template.model_copy(update={"path": copy})})
    if path := _find_files(tokenizer, own, is_leader=is_leader):
        tokenizer = tokenizer.model_copy(update={"path": path})
    return spec if tokenizer is spec.tokenizer else spec.model_copy(update={"tokenizer": tokenizer})


def drop_host_folder(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with paths that are equal on all hosts: those of a host's copies lose its temporary folder."""
    template = tokenizer.chat_template
    if template:
        template = template.model_copy(update={"path": _drop_temporary_folder(template.path)})
    path = tokenizer.path and _drop_temporary_folder(tokenizer.path)
    return tokenizer.model_copy(update={"path": path, "chat_template": template})


def _drop_temporary_folder(path: str) -> str:
    copies = f"{gettempdir()}/{COPY_PREFIX}"
    return f"{COPY_PREFIX}{path.removeprefix(copies)}" if path.startswith(copies) else path


def _find_files(tokenizer: Tokenizer, own: Store, *, is_leader: bool) -> str:
    """Return the path of the downloaded files of a tokenizer; empty: nothing needs to be downloaded."""
    if tokenizer.path is not None and is_bucket(tokenizer.path):
        file = "" if tokenizer.type == HUGGING_FACE else published_name(tokenizer)
        return _copy_from_bucket(
            _BucketFiles(PATH_FIELD, tokenizer.type, tokenizer.path, file), own, is_leader=is_leader
        )
    source = tokenizer.hugging_face
    if source is None:
        return ""
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository, revision, "model", f"{FIELD}.repository", f"{FIELD}.token")
    name = hashlib.sha256(f"{source.repository}@{revision}".encode()).hexdigest()[:16]
    folder = HubFolder(own, f"{FOLDER}/tokenizer/{name}", f"{FOLDER}/tokenizer/{name}.json", FOLDER_FILES)
    folder.download(hub, is_leader=is_leader)
    return _open_files(own, folder.files)


class _BucketFiles(NamedTuple):
    """A file or a folder in a bucket, and the field that names it. `file` is the name of its copy; empty: a folder."""

    field: str
    kind: str
    """Distinguishes the copies of one file under different names."""
    uri: str
    file: str

    def error(self, error: OSError) -> TrainingError:
        """Return the error of a bucket that refuses or does not respond."""
        message = describe_refusal(f"{self.uri} cannot be read", error)
        return TrainingError(FailureReason.DATA, message, path=self.field, value=self.uri, fatal=is_permanent(error))


def _copy_from_bucket(source: _BucketFiles, own: Store, *, is_leader: bool) -> str:
    """Return the path of the copy of files in a bucket. The record is written last, so the copy never changes."""
    name = hashlib.sha256(f"{source.kind} {source.uri}".encode()).hexdigest()[:16]
    folder, record = f"{FOLDER}/tokenizer/{name}", f"{FOLDER}/tokenizer/{name}.json"
    try:
        if is_leader and not has_object(own, record):
            for stored in _find_objects(source):
                own.write(f"{folder}/{source.file or stored.uri.rpartition('/')[2]}", _read_object(source, stored))
            own.write(record, (b"{}",))
        while not has_object(own, record):
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise storage_error(error, f"copying the tokenizer to {own.locate(folder)}", own.root) from error
    return str(Path(_open_files(own, folder), source.file))


def _open_files(own: Store, folder: str) -> str:
    """Return a local folder with the files of a folder of the job: a copy on this host, if the job is in a bucket.

    The files of a folder never change, so processes of one host may share a copy, and replace its files by equal ones.
    """
    if not is_bucket(own.root):
        return own.locate(folder)
    name = hashlib.sha256(own.locate(folder).encode()).hexdigest()[:16]
    local = Path(gettempdir(), f"{COPY_PREFIX}{name}")
    copies = open_store(local)
    try:
        _make_private(local)
        for file in own.list_files(folder):
            if not has_object(copies, file):
                copies.write(file, own.read_chunks(f"{folder}/{file}"))
    except OSError as error:
        raise storage_error(error, f"copying the tokenizer to {local}", own.root) from error
    return str(local)


def _make_private(folder: Path) -> None:
    """Create a folder of this user, unless it exists. Its name is known, and others may write to the folder above it.

    Raises:
        PermissionError: others can write to it, so that its files may not be the tokenizer of the job.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
        raise PermissionError(errno.EACCES, f"{folder} is not a folder that only this user writes. Delete it")


def _find_objects(source: _BucketFiles) -> list[StoredObject]:
    """Return the file, or the files of a tokenizer in the folder.

    Raises:
        TrainingError: there are none, or the bucket refuses or does not respond.
    """
    try:
        if source.file:
            return [find_object(source.uri)]
        root = source.uri.rstrip("/")
        found = [stored for stored in list_objects(root) if stored.uri.removeprefix(f"{root}/") in FOLDER_FILES]
    except OSError as error:
        raise source.error(error) from error
    if not found:
        message = f"{root} must be a folder with {FOLDER_FILES[0]}, but has none of its files. Correct the URI."
        raise TrainingError(FailureReason.DATA, message, path=source.field, value=source.uri)
    return found


def _read_object(source: _BucketFiles, stored: StoredObject) -> list[bytes]:
    try:
        with open_object(stored) as file:
            return list(iter(lambda: file.read(CHUNK_BYTES), b""))
    except OSError as error:
        raise source.error(error) from error
