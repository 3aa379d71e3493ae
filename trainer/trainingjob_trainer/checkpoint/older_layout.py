"""Names that older trainers left below a checkpoint folder, when a commit was a rename. Only deletions need them."""

import re
from contextlib import suppress

from trainingjob_agent.checkpoint_layout import parse_lineage
from trainingjob_agent.shared_files import parse_number
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import read_integrity
from trainingjob_trainer.checkpoint.step_folders import StepFolder, list_lineages
from trainingjob_trainer.store.port import Store

INTERRUPTED_NAME = re.compile(
    r"[0-9]+(\.(saving|copying)-[0-9]+)?\.orbax-checkpoint-tmp(-[0-9]+)?"
    r"|[0-9]+\.(saving|copying)-[0-9]+(\.void)?"
    r"|[0-9]+(\.damaged-[0-9]+(-[0-9]+)?)?\.void"
)
"""Names of the folders that an interrupted save, copy or deletion left."""
QUARANTINED_NAME = re.compile(r"(?P<step>[0-9]+)\.damaged-[0-9]+(-[0-9]+)?")
"""Names of quarantined steps."""


def delete_older_interrupted(store: Store) -> None:
    """Delete what interrupted saves, copies and deletions left.

    Raises:
        OSError: the folders cannot be listed.
    """
    for lineage, name in _list_names(store):
        if INTERRUPTED_NAME.fullmatch(name):
            with suppress(OSError):
                store.delete_tree(f"{lineage}/{name}")


def delete_older_quarantined(store: Store, step: int, fence: Fence) -> None:
    """Delete quarantined steps before a step, where their manifest shows that this job saved them.

    Raises:
        OSError: the store refuses the deletion.
    """
    for lineage, name in _list_names(store):
        match = QUARANTINED_NAME.fullmatch(name)
        number = parse_number(match["step"]) if match else None
        if number is None or number >= step:
            continue
        with suppress(ValueError):
            record = read_integrity(StepFolder(store, f"{lineage}/{name}"))
            if record and (record.job_uid, record.step, record.lineage) == (
                fence.job_uid,
                number,
                parse_lineage(lineage),
            ):
                store.delete_tree(f"{lineage}/{name}")


def _list_names(store: Store) -> list[tuple[str, str]]:
    """Return lineage and name of each folder in a lineage."""
    return [
        (lineage, entry.name)
        for lineage in list_lineages(store)
        for entry in store.list_folder(lineage)
        if entry.is_folder
    ]
