"""Errors of a round as failures of the world of a replica. Other replicas continue without it."""

from collections.abc import Iterator
from contextlib import contextmanager

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.replicas.outer_update import NonFiniteDeltaError
from trainingjob_trainer.replicas.round_agreement import ReplicaBehindError
from trainingjob_trainer.replicas.round_files import DamagedDeltaError, RoundFiles
from trainingjob_trainer.runtime.errors import TrainingError, foreign_error, storage_error


@contextmanager
def training_errors(files: RoundFiles) -> Iterator[None]:
    """Raise each error of the rounds in a store as `TrainingError`, with what to do.

    A world that restores a checkpoint resolves most of them, so that they are not fatal.
    """
    try:
        yield
    except NonFiniteDeltaError as error:
        raise TrainingError(
            FailureReason.NON_FINITE,
            f"{error}. The steps of this slice since the last round are dropped, and the slice joins the others again. "
            "Lower spec.optimizer.learningRate if it happens often.",
            path="spec.optimizer.learningRate",
            fatal=False,
        ) from error
    except ReplicaBehindError as error:
        raise _behind_failure(files, error) from error
    except DamagedDeltaError as error:
        if _is_saved(files, error.round):  # the round is deleted while this replica reads it, or is not needed any more
            raise _behind_failure(files, error) from error
        raise _storage_failure(
            files,
            f"a delta below {files.location} is damaged: {error}. The slice resumes from a checkpoint after that round "
            "once there is one. If no slice gets past it, suspend the job and delete that folder and later ones.",
        ) from error
    except UntrustedFileError as error:
        raise foreign_error(error, files.location, files.uri) from error
    except OSError as error:
        raise storage_error(error, f"exchanging deltas below {files.location}", files.uri) from error


def _is_saved(files: RoundFiles, number: int) -> bool:
    try:
        return files.is_saved(number)
    except OSError:
        return False


def _behind_failure(files: RoundFiles, error: Exception) -> TrainingError:
    message = f"this slice must restore a newer checkpoint: {error}."
    return _storage_failure(files, message, is_replica_behind=True)


def _storage_failure(files: RoundFiles, message: str, *, is_replica_behind: bool = False) -> TrainingError:
    return TrainingError(
        FailureReason.STORAGE,
        message,
        path="spec.checkpoint.uri",
        value=files.uri,
        fatal=False,
        is_replica_behind=is_replica_behind,
    )
