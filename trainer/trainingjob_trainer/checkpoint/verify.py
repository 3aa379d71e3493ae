"""Verification of a saved step: each host compares its share of the files with the manifest."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_trainer.checkpoint.error_exchange import describe_error
from trainingjob_trainer.checkpoint.frozen_tensors import describe_frozen_damage, list_saved_files, read_frozen
from trainingjob_trainer.checkpoint.manifest import (
    ReadRetry,
    SavedFrozen,
    find_damage,
    list_files,
    read_integrity,
    select_share,
)
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.process_group import ProcessGroup

VERIFY_SECONDS = 1800


class VerifyResult(NamedTuple):
    """The result of verifying this process's share of a step: damage, or a failed read."""

    damage: str = ""
    unreadable: str = ""
    error_number: int = 0
    """The `errno` of the failed read."""


def verify(
    folder: StepFolder, peers: ProcessGroup, readers: Sequence[int] | None = None, read_retry: ReadRetry | None = None
) -> VerifyResult:
    """Verify this process's share of a step's files, and return the damage or the failed read.

    The files of frozen tensors count as those of the step that refers to them.

    `readers` are the processes that share the files, by default all. `read_retry` repeats failed reads; None: new.
    """
    readers = range(peers.num_processes) if readers is None else readers
    read_retry = read_retry or ReadRetry()
    if peers.process not in readers:
        return VerifyResult()
    try:
        integrity = read_retry.read(lambda: read_integrity(folder))
        if integrity is None:
            return VerifyResult(
                f"{MANIFEST_FILE} is not there on every host: is the folder on storage that all hosts share?"
            )
        files = read_retry.read(lambda: list_saved_files(folder, integrity))
        if peers.process == readers[0]:
            for part in dict.fromkeys(file.folder for file in files):
                read_retry.read(lambda part=part: list_files(part))  # type: ignore[misc]
        for file in select_share(files, readers.index(peers.process), len(readers)):
            expected = {file.name: file.expected}
            if damage := read_retry.read(lambda file=file, expected=expected: find_damage(file.folder, expected)):  # type: ignore[misc]
                return VerifyResult(file.describe(damage, folder))
    except ValueError as error:
        return VerifyResult(str(error))
    except OSError as error:
        return _unreadable(error)
    return VerifyResult()


def verify_frozen(step: StepFolder, reference: SavedFrozen, peers: ProcessGroup) -> VerifyResult:
    """Verify this process's share of frozen tensors to which a step of the same store is to refer."""
    try:
        folder, _ = read_frozen(step, reference)
    except ValueError as error:
        return VerifyResult(str(error))
    except OSError as error:
        return _unreadable(error)
    found = verify(folder, peers)
    return found._replace(damage=describe_frozen_damage(folder, found.damage)) if found.damage else found


def _unreadable(error: OSError) -> VerifyResult:
    return VerifyResult(unreadable=describe_error(error), error_number=error.errno or errno.EIO)
