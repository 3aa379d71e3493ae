"""Errors of known causes, for the user to act on and for the operator to decide on. Nothing here needs JAX."""

import errno
import os

from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.store.retry import WebPageError

PERMANENT_ERRNOS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP}
)
"""Storage errors that a retry meets again. A full or stale file system may recover."""
BUCKET_ADVICE = "the name of the bucket, the endpoint, and the rights of spec.runtime.serviceAccountName"
"""What to check when a bucket refuses a request."""


class TrainingError(Exception):
    """Training cannot continue, for a known reason.

    `path` and `value` name the field of the spec to change. `fatal`: a retry would fail in the same way.
    `is_host_known`: the failure is this host's own; if false, it may be that of another host that reports the same.
    `newest_generation`: generation of the world that fenced off this one; 0: none did.
    `is_replica_behind`: the slice must restore a newer checkpoint, because other replicas have continued without it.
    """

    def __init__(
        self,
        reason: FailureReason,
        message: str,
        *,
        path: str = "",
        value: object = "",
        fatal: bool = True,
        is_host_known: bool = True,
        newest_generation: int = 0,
        is_replica_behind: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.path = path
        self.value = str(value)
        self.fatal = fatal
        self.is_host_known = is_host_known
        self.newest_generation = newest_generation
        self.is_replica_behind = is_replica_behind


def shorten(text: str, limit: int) -> str:
    """Return a text in at most `limit` characters; an ellipsis marks a cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def storage_error(error: OSError, operation: str, uri: str, field: str = "spec.checkpoint.uri") -> TrainingError:
    """Return the error for a failed operation below the folder that `field` names, with the system's message."""
    text = os.strerror(error.errno) if error.errno else str(error)
    advice = "the volume that spec.runtime.volumes mounts, and its access mode and permissions"
    if "://" in uri:
        text = error.strerror or text  # the answer of the store
        advice = BUCKET_ADVICE
    return TrainingError(
        FailureReason.STORAGE,
        f"{operation} failed: {text}. Every host must be able to write there: check {advice}.",
        path=field,
        value=uri,
        fatal=error.errno in PERMANENT_ERRNOS or isinstance(error, WebPageError),
    )


def name_check(error: OSError) -> str:
    """Return what to check when a file of this host cannot be read, as the end of a sentence."""
    return "its permissions" if error.errno in (errno.EACCES, errno.EPERM) else "the volume that holds it"


def is_permanent(error: OSError) -> bool:
    """Return whether a retry would fail again: something is missing, not permitted, or a web page of a bucket."""
    return error.errno in PERMANENT_ERRNOS | {errno.ENOENT} or isinstance(error, WebPageError)


def describe_refusal(begin: str, error: OSError) -> str:
    """Return the message of a bucket that refuses a request or does not answer."""
    reason = (error.strerror or str(error)).rstrip(".")
    return f"{begin}: {reason}. Check {BUCKET_ADVICE}."


def foreign_error(error: ValueError, where: str, uri: str) -> TrainingError:
    """Return the error for a file below the checkpoint folder that is not in the format of this project."""
    return TrainingError(
        FailureReason.STORAGE,
        f"{where} must hold only files of a TrainingJob: {error}. If nothing else uses it, delete it.",
        path="spec.checkpoint.uri",
        value=uri,
    )
