"""Files of compiled programs on storage that others may write, each with an authentication code of this job.

Loading a compiled program executes its content, and unpickles its description. The folders lie on storage that may be
shared with other jobs, whose pods have the same user. Each file therefore begins with an HMAC of its name and content,
which is verified before anything of the file is parsed. The HMAC's secret is never on storage; see `Answer`.
"""

import hashlib
import hmac
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
PROGRAM_SUFFIX = ".program"
MAX_PROGRAM_BYTES = 1 << 30
"""Maximum bytes of a file: many times the size of a compiled program."""
MAX_FOLDER_BYTES = 4 << 30
"""Maximum bytes of all programs in the folder of a host: half the volume of the pod, whose excess evicts it."""
NAME_CONTEXT, CONTENT_CONTEXT = b"trainingjob compiled program: name\0", b"trainingjob compiled program: content\0"


def program_file_name(secret: str, name: str, key: str) -> str:
    """Return the file name of a program, which differs between jobs and between compile-cache keys.

    Jobs may share a folder: each job has its own file names there and overwrites no file of another job.
    """
    named = f"{name}\0{key}".encode()
    return f"{name}-{hmac.digest(secret.encode(), NAME_CONTEXT + named, 'sha256').hex()[:32]}{PROGRAM_SUFFIX}"


def write_program(store: Store, name: str, content: bytes, secret: str) -> None:
    """Write a program unless it is empty; if storage rejects it, training continues without the file."""
    if not content:
        return
    try:
        store.write(name, (_sign(name, content, secret), content))
    except OSError as error:
        LOG.warning("cannot keep a compiled program path=%s error=%s", store.locate(name), error)


def read_program(store: Store, name: str, secret: str) -> bytes:
    """Return the program that this job wrote under this name; empty: there is none."""
    try:
        signed = memoryview(store.read(name, MAX_PROGRAM_BYTES))
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        LOG.warning("cannot read a compiled program path=%s error=%s", store.locate(name), error)
        return b""
    code, content = signed[: hashlib.sha256().digest_size], signed[hashlib.sha256().digest_size :]
    if not hmac.compare_digest(code, _sign(name, content, secret)):
        LOG.warning(
            "a compiled program was not written by this job, or has changed, and is not loaded path=%s",
            store.locate(name),
        )
        return b""
    return bytes(content)


def mark_used(folder: str, name: str) -> None:
    """Make a program of a host's folder the one that was used last. A read-only folder stays as it is."""
    with suppress(OSError):
        os.utime(Path(folder, name), follow_symlinks=False)


def delete_least_recent(folder: str, pattern: re.Pattern[str], needed_bytes: int) -> None:
    """Delete programs of a host's folder that were not used for longest, until others fit into its limit.

    `pattern` matches the names of programs. Those of other jobs, which may share the folder, are among them.
    """
    try:
        entries = [entry for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]
        files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
        total = needed_bytes + sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total <= MAX_FOLDER_BYTES:
                return
            os.unlink(path)  # noqa: PTH108  # a name of `scandir`
            total -= status.st_size
    except OSError as error:  # it is missing, read-only, or another process cleans it up
        LOG.debug("cannot delete compiled programs folder=%s error=%s", folder, error)


def _sign(name: str, content: bytes | memoryview, secret: str) -> bytes:
    code = hmac.new(secret.encode(), CONTENT_CONTEXT + name.encode() + b"\0", hashlib.sha256)
    code.update(content)
    return code.digest()
