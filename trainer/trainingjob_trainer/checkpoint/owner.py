"""Ownership of a checkpoint folder: an OWNER file with the job's UID, made by exclusive creation.

Two jobs that share one folder would mix their steps. The second job is refused, unless its spec sets
`checkpoint.takeover`. The file also names the former owners. Such a job does not take the folder over again: two jobs
with `takeover` would otherwise take it from each other, and each would quarantine the other's steps.
"""

import json
import logging
import os
import time
from typing import Any, NamedTuple

from trainingjob_agent.shared_files import parse_untrusted_json
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import RunConfig
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
OWNER_FILE = "OWNER"
MAX_BYTES = 4096
"""Maximum size of OWNER in bytes: names of Kubernetes objects are shorter."""
MAX_FORMER = 48
"""Maximum number of former owners in OWNER, the newest ones, so that the file stays below `MAX_BYTES`."""
UNFINISHED_SECONDS = 2.0
"""Seconds for which an empty OWNER file counts as being written by a job."""


class Owner(NamedTuple):
    """The content of OWNER: the job that owns the folder, and the UIDs of its former owners, newest first.

    Older trainers did not write the former owners.
    """

    uid: str
    job: str
    former: tuple[str, ...] = ()


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


def claim(store: Store, config: RunConfig, field: str = "spec.checkpoint.uri", *, has_trained: bool = False) -> None:
    """Claim the folder that a field names for this job, or confirm that the job owns it.

    `has_trained`: the job has trained on the folder, so it has owned it.

    Raises:
        TrainingError: another job owns the folder, and this job has owned it before or its spec has no takeover. Or the
            folder cannot be written.
    """
    own = Owner(config.job.uid, f"{config.job.namespace}/{config.job.name}")
    try:
        try:
            store.create_exclusive(OWNER_FILE, _dump(own))
        except FileExistsError:
            present = _read(store, field)
        else:
            return
        if present is None:
            store.write(OWNER_FILE, (_dump(own),))
        elif present.uid != own.uid:
            _check_takeover(present, store, config, field, is_lost=has_trained or own.uid in present.former)
            former = (present.uid, *present.former)[:MAX_FORMER]
            store.write(OWNER_FILE, (_dump(own._replace(former=former)),))
    except OSError as error:
        raise storage_error(error, f"claiming {store.locate(OWNER_FILE)}", store.root, field) from error


def _check_takeover(present: Owner, store: Store, config: RunConfig, field: str, *, is_lost: bool) -> None:
    """Raise TrainingError if this job may not take over a folder. `is_lost`: the job has owned it before."""
    if config.spec.checkpoint.takeover and not is_lost:
        return
    advice = (
        "This job has lost the folder, and does not take it over again. Create another job with "
        "spec.checkpoint.takeover set to true to resume from them, or with another folder."
        if is_lost
        else "Choose another folder, or set spec.checkpoint.takeover to true to resume from them; that job can then no "
        "longer use them."
    )
    raise TrainingError(
        FailureReason.CONFIG,
        f"the folder holds the checkpoints of {present.job} (UID {present.uid}). {advice}",
        path=field,
        value=store.root,
    )


def claim_if_available(store: Store, config: RunConfig, field: str) -> None:
    """Claim a second folder of a job. A store that does not respond is logged: its first use reports it.

    Raises:
        TrainingError: another job owns the folder, and this job may not take it over.
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
    return bool(owners := list_owners(store)) and owners[0] != uid


def list_owners(store: Store) -> tuple[str, ...]:
    """Return the UIDs of the owner of a folder and of its former owners, newest first; empty: none is known.

    Raises:
        OSError: storage does not answer.
    """
    try:
        owner = _parse(store.read(OWNER_FILE, MAX_BYTES))
    except (FileNotFoundError, ValueError):  # no job owns it, or the file is being written
        return ()
    return owner.uid, *owner.former


def _dump(owner: Owner) -> bytes:
    return json.dumps(owner._asdict()).encode() + b"\n"


def _parse(content: bytes) -> Owner:
    """Return the validated content of OWNER.

    Raises:
        ValueError: the content is not what a job writes.
    """
    entry: Any = parse_untrusted_json(OWNER_FILE, content)
    match entry:
        case {"uid": str(uid), "job": str(job), **others} if uid.isprintable() and job.isprintable():
            former: Any = others.get("former", [])
            if isinstance(former, list) and all(isinstance(name, str) and name.isprintable() for name in former):
                return Owner(uid, job, tuple(former))
    raise ValueError("it names no job")


def _read(store: Store, field: str) -> Owner | None:  # None: its writer died before it wrote any content
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
