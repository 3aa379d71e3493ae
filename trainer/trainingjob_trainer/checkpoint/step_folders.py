"""The folder of a step in a store, the parts of its name, and the lineages that hold such folders."""

import errno
from typing import NamedTuple

from trainingjob_agent.checkpoint_layout import StepName, parse_lineage, parse_step_name
from trainingjob_trainer.store.port import Store


class StepFolder(NamedTuple):
    """The folder of a step. `name` is its name below the root of the store."""

    store: Store
    name: str

    @property
    def location(self) -> str:
        """Return the path or URI of the folder."""
        return self.store.locate(self.name)

    @property
    def step_name(self) -> StepName:
        """Return the parts of the last part of the name."""
        parsed = parse_step_name(self.name.rpartition("/")[2])
        assert parsed is not None  # noqa: S101  # only steps get a folder
        return parsed

    @property
    def step(self) -> int:
        """Return the number of the step."""
        return self.step_name.step

    @property
    def lineage(self) -> int | None:
        """Return the number of the lineage."""
        return parse_lineage(self.name.rpartition("/")[0])

    def file(self, name: str) -> str:
        """Return the name of a file of the step below the root of the store."""
        return f"{self.name}/{name}"


def list_lineages(store: Store) -> list[str]:
    """Return the folders of all lineages, oldest first.

    Raises:
        OSError: the store does not respond, or a lineage folder is a link: steps would be deleted elsewhere.
    """
    lineages = [(number, entry) for entry in store.list_folder() if (number := parse_lineage(entry.name)) is not None]
    for _, entry in lineages:
        if not entry.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, f"{entry.name} must be a folder itself, not a link or a file")
    return [entry.name for _, entry in sorted(lineages)]
