"""Verification of a saved step: each host compares its share of the files with the manifest."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_trainer.checkpoint.error_exchange import describe_error
from trainingjob_trainer.checkpoint.manifest import ReadRetry, find_damage, list_files, read_integrity, select_share
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
    folder: StepFolder, peers: ProcessGroup, readers: Sequence[int] | None = None, patience: ReadRetry | None = None
) -> VerifyResult:
    """Verify this process's share of a step's files, and return the damage or the failed read.

    `readers` are the processes that share the files, by default all. `patience` retries failed reads; None: a new one.
    """
    readers = range(peers.num_processes) if readers is None else readers
    patience = patience or ReadRetry()
    if peers.process not in readers:
        return VerifyResult()
    try:
        integrity = patience.read(lambda: read_integrity(folder))
        if integrity is None:
            return VerifyResult(
                f"{MANIFEST_FILE} is not there on every host: is the folder on storage that all hosts share?"
            )
        if peers.process == readers[0]:
            patience.read(lambda: list_files(folder))
        for name in select_share(sorted(integrity.files), readers.index(peers.process), len(readers)):
            wanted = {name: integrity.files[name]}
            if damage := patience.read(lambda wanted=wanted: find_damage(folder, wanted)):  # type: ignore[misc]
                return VerifyResult(damage)
    except ValueError as error:
        return VerifyResult(str(error))
    except OSError as error:
        return VerifyResult(unreadable=describe_error(error), error_number=error.errno or errno.EIO)
    return VerifyResult()
