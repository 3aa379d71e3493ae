"""Files of compiled programs on storage that others may write, each with an authentication code of this job.

Loading a compiled program executes its content, and unpickles its description. The folders lie on storage that may be
shared with other jobs, whose pods have the same user. Each file therefore begins with an HMAC of its name and content,
which is verified before anything of the file is parsed. The HMAC's secret is never on storage; see `Answer`.
"""

import hashlib
import hmac
import logging

from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
PROGRAM_SUFFIX = ".program"
MAX_PROGRAM_BYTES = 1 << 30
"""Maximum bytes of a file: many times the size of a compiled program."""
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
        store.write(name, sign_program(name, content, secret))
    except OSError as error:
        LOG.warning("cannot keep a compiled program path=%s error=%s", store.locate(name), error)


def sign_program(name: str, content: bytes, secret: str) -> tuple[bytes, bytes]:
    """Return the content of a program's file, in two parts: its authentication code and the program."""
    return _sign(name, content, secret), content


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


def _sign(name: str, content: bytes | memoryview, secret: str) -> bytes:
    code = hmac.new(secret.encode(), CONTENT_CONTEXT + name.encode() + b"\0", hashlib.sha256)
    code.update(content)
    return code.digest()
