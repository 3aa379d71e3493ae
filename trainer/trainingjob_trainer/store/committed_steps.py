"""The committed steps of a job by the names of their objects alone, without a look at their content."""

from collections.abc import Iterator
from typing import NamedTuple

from trainingjob_agent.checkpoint_layout import (
    MANIFEST_FILE,
    QUARANTINE_SUFFIX,
    StepName,
    parse_lineage,
    parse_step_name,
)
from trainingjob_trainer.store.port import Store, has_object


class CommittedStep(NamedTuple):
    """A committed step, and the name of its folder. Newer ones are greater."""

    lineage: int
    step: StepName
    folder: str


def list_committed(store: Store) -> Iterator[CommittedStep]:
    """Yield the committed steps; other names are ignored."""
    for parent in store.list_folder():
        lineage = parse_lineage(parent.name)
        if lineage is None or not parent.is_folder:
            continue
        entries = store.list_folder(parent.name)
        names = {entry.name for entry in entries}
        for entry in entries:
            step, folder = parse_step_name(entry.name), f"{parent.name}/{entry.name}"
            is_quarantined = entry.name + QUARANTINE_SUFFIX in names
            if step and not is_quarantined and entry.is_folder and has_object(store, f"{folder}/{MANIFEST_FILE}"):
                yield CommittedStep(lineage, step, folder)
