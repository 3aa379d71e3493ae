"""Ownership of a checkpoint folder: an OWNER file with the job's UID, made by exclusive creation.

Two jobs that share one folder would mix their steps. The second job is refused, unless its spec sets
`checkpoint.takeover`.
"""

import json
import logging
import os
import time
from typing import Any

from trainingjob_agent.shared_files import parse_untrusted_json
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import RunConfig
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
OWNER_FILE = "OWNER"
MAX_BYTES = 4096
"""Maximum size of OWNER in bytes: names of Kubernetes objects are shorter."""
UNFINISHED_SECONDS = 2.0
"""Seconds for which an empty OWNER file counts as being written by a job."""


def check_writable(store: Store, field: str = "spec.checkpoint.uri") -> None:
    """Check that this host can write to the store that a field names.

    Raises:
        TrainingError: the host cannot write there.
    """
    probe = f".probe.{os.uname().nodename}.{os.getpid()}"
    try:
        store.write(probe, ())
        store.delete(probe)
    except OSError as error:
        raise storage_error(error, f"writing to {store.root}", store.root, field) from error


def claim(store: Store, config: RunConfig, field: str = "spec.checkpoint.uri") -> None:
    """Claim the folder that a field names for this job, or confirm that the job owns it.

    Raises:
        TrainingError: another job owns the folder and the spec has no takeover, or the folder cannot be written.
    """
    job = config.job
    own_entry = {"uid": job.uid, "job": f"{job.namespace}/{job.name}"}
    content = json.dumps(own_entry).encode() + b"\n"
    try:
        try:
            store.create_exclusive(OWNER_FILE, content)
        except FileExistsError:
            owner = _read(store, field)
        else:
            return
        if owner is None or (owner["uid"] != job.uid and config.spec.checkpoint.takeover):
            store.write(OWNER_FILE, (content,))
        elif owner["uid"] != job.uid:
            raise TrainingError(
                FailureReason.CONFIG,
                f"the folder holds the checkpoints of {owner['job']} (UID {owner['uid']}). Choose another folder, or "
                "set spec.checkpoint.takeover to true to resume from them; that job can then no longer use them.",
                path=field,
                value=store.root,
            )
    except OSError as error:
        raise storage_error(error, f"claiming {store.locate(OWNER_FILE)}", store.root, field) from error


def claim_if_available(store: Store, config: RunConfig, field: str) -> None:
    """Claim a second folder of a job. A store that does not respond is logged: its first use reports it.

    Raises:
        TrainingError: another job owns the folder and the spec has no takeover.
    """
    try:
        check_writable(store, field)
        claim(store, config, field)
    except TrainingError as error:
        if error.reason is not FailureReason.STORAGE:
            raise
        LOG.warning("folder unusable field=%s error=%s", field, error)


def is_owned_by_other(store: Store, uid: str) -> bool:
    """Return whether another job owns a folder.

    Raises:
        OSError: storage does not answer.
    """
    try:
        return bool(_parse(store.read(OWNER_FILE, MAX_BYTES))["uid"] != uid)
    except (FileNotFoundError, ValueError):  # no job owns it, or the file is being written
        return False


def _parse(content: bytes) -> dict[str, str]:
    """Return the validated content of OWNER.

    Raises:
        ValueError: the content is not what a job writes.
    """
    entry: Any = parse_untrusted_json(OWNER_FILE, content)
    match entry:
        case {"uid": str(uid), "job": str(job)} if uid.isprintable() and job.isprintable():
            return {"uid": uid, "job": job}
    raise ValueError("it names no job")


def _read(store: Store, field: str) -> dict[str, str] | None:  # None: its writer died before it wrote any content
    """Return the content of OWNER; wait for `UNFINISHED_SECONDS` while it is incomplete."""
    deadline = time.monotonic() + UNFINISHED_SECONDS
    while True:
        try:
            if (content := store.read(OWNER_FILE, MAX_BYTES)).endswith(b"\n"):
                return _parse(content)
        except ValueError as error:
            raise TrainingError(
                FailureReason.STORAGE,
                f"{store.locate(OWNER_FILE)} was not written by a TrainingJob. If no job uses the folder, delete the "
                "file.",
                path=field,
                value=store.root,
            ) from error
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
