"""The catalog of a cluster, from the files of an administrator."""

from pathlib import Path

from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.shell.accelerators import load_accelerators
from trainingjob_operator.shell.added_presets import load_presets
from trainingjob_operator.shell.added_values import InvalidRow


def load_catalog(accelerators: Path | None, presets: Path | None) -> tuple[Catalog, tuple[InvalidRow, ...]]:
    """Return the catalog with the rows of both files, and the rows that it does not include. None: no file."""
    hardware, models = load_accelerators(accelerators), load_presets(presets)
    return Catalog(hardware.hardware, models.presets), (*hardware.invalid_rows, *models.invalid_rows)
