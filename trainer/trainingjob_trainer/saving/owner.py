"""Whose checkpoints a folder holds: an OWNER file with the job's UID, made once, by exclusive creation.

Two jobs that are pointed at one folder would mix their steps. The second one is refused, unless its spec says that it
takes over.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import RunConfig
from trainingjob_trainer.failures import TrainingError, storage_error
from trainingjob_trainer.files import read_foreign, read_json, write_whole

FILE = "OWNER"
LARGEST = 4096
"""Bytes of OWNER at most: names of Kubernetes are shorter."""
UNFINISHED_SECONDS = 2.0
"""How long an empty OWNER may belong to a job that is just writing it."""


def check_writable(root: Path, field: str = "spec.checkpoint.uri") -> None:
    """Prove that this host can write below the folder that a field names, which is made if need be.

    Raises:
        TrainingError: it cannot.
    """
    probe = root / f".probe.{os.uname().nodename}.{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.unlink(missing_ok=True)  # it may be a link to what must not be written
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise storage_error(error, f"writing to {root}", str(root), field) from error


def claim(root: Path, config: RunConfig, field: str = "spec.checkpoint.uri") -> None:
    """Make the folder that a field names this job's own, or confirm that it is.

    Raises:
        TrainingError: it is another job's and the spec does not take over, or it cannot be written.
    """
    job = config.job
    mine = {"uid": job.uid, "job": f"{job.namespace}/{job.name}"}
    path = root / FILE
    content = json.dumps(mine).encode() + b"\n"
    try:
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            owner = _read(path, field)
        else:
            return
        if owner is None or (owner["uid"] != job.uid and config.spec.checkpoint.takeover):
            write_whole(path, content)
        elif owner["uid"] != job.uid:
            raise TrainingError(
                FailureReason.CONFIG,
                f"the folder holds the checkpoints of {owner['job']} (UID {owner['uid']}). Choose another folder, or "
                "set spec.checkpoint.takeover to true to go on from them; that job can then no longer use them.",
                path=field,
                value=root,
            )
    except OSError as error:
        raise storage_error(error, f"claiming {path}", str(root), field) from error


def is_anothers(root: Path, uid: str) -> bool:
    """Return whether a folder is known to be another job's by now.

    Raises:
        OSError: storage does not answer.
    """
    try:
        return bool(_parse(read_json(root / FILE, LARGEST))["uid"] != uid)
    except (FileNotFoundError, ValueError):  # it never was anybody's, or is just being written
        return False


def _parse(said: Any) -> dict[str, str]:
    """Return what OWNER says.

    Raises:
        ValueError: it is not what a job writes.
    """
    match said:
        case {"uid": str(uid), "job": str(job)} if uid.isprintable() and job.isprintable():
            return {"uid": uid, "job": job}
    raise ValueError("it names no job")


def _read(path: Path, field: str) -> dict[str, str] | None:  # None: whoever made it died before writing a word
    """Return what OWNER says."""
    deadline = time.monotonic() + UNFINISHED_SECONDS
    while True:
        try:
            if read_foreign(path, LARGEST).endswith(b"\n"):
                return _parse(read_json(path, LARGEST))
        except ValueError as error:
            raise TrainingError(
                FailureReason.STORAGE,
                f"{path} is not what a TrainingJob writes. If no job uses the folder, delete the file.",
                path=field,
                value=path.parent,
            ) from error
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
