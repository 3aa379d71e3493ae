"""Folders of exported checkpoints: their record, which completes an export, and their deletion.

An export has the name of a save by the world that exports it, `lineage-<n>/<step>.g<generation>.s<number>.<job>`. So no
two worlds write into one folder. `export.json` is written last: an export without it is incomplete.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pydantic import ValidationError

from trainingjob_agent.shared_files import parse_untrusted_json
from trainingjob_api.base import Open
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.saved_steps import list_step_folders
from trainingjob_trainer.checkpoint.step_folders import StepFolder, list_lineages
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

RECORD_FILE = "export.json"
MAX_RECORD_BYTES = 1 << 16


class ExportRecord(Open):
    """Content of `export.json`: the exported checkpoint and the format of the files."""

    job_uid: str
    checkpoint: str
    """Name of the step's folder below `checkpoint.uri`."""
    dtype: str
    adapter: str


class Export(NamedTuple):
    """The folder of an export. `record` None: it is incomplete."""

    folder: StepFolder
    record: ExportRecord | None


def list_exports(store: Store) -> Iterator[Export]:
    """Yield all exports below a folder, complete or not.

    Raises:
        OSError: the store does not respond.
    """
    for lineage in list_lineages(store):
        for folder, entry, _ in list_step_folders(store, lineage):
            if entry.is_folder and folder.step_name.writer:
                yield Export(folder, _read_record(folder))


def commit_export(folder: StepFolder, record: ExportRecord, fence: Fence) -> None:
    """Write the record of an export whose files are complete, unless a later world exists.

    Raises:
        TrainingError: a later world exists, and the export stays incomplete.
        OSError: the store refuses the write.
    """
    fence.check()
    name = folder.file(RECORD_FILE)
    folder.store.write(name, [json.dumps(record.model_dump(mode="json"), indent=1).encode()])
    try:
        fence.check()
    except TrainingError:
        with suppress(OSError):
            folder.store.delete(name)
        raise


def delete_export(folder: StepFolder) -> None:
    """Delete an export, complete or not.

    Raises:
        OSError: the store refuses the deletion. The export is then incomplete, or unchanged.
    """
    folder.store.delete(folder.file(RECORD_FILE))
    folder.store.delete_tree(folder.name)


def _read_record(folder: StepFolder) -> ExportRecord | None:
    name = folder.file(RECORD_FILE)
    try:
        return ExportRecord.model_validate(parse_untrusted_json(name, folder.store.read(name, MAX_RECORD_BYTES)))
    except (FileNotFoundError, ValidationError, ValueError):
        return None
