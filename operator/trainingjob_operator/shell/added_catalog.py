"""The catalog of an installation: the built-in tables, with the rows of an administrator's files."""

from dataclasses import dataclass
from pathlib import Path

from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.shell.accelerators import load_accelerators
from trainingjob_operator.shell.added_presets import load_presets
from trainingjob_operator.shell.added_profiles import load_profiles
from trainingjob_operator.shell.added_values import InvalidRow


@dataclass(frozen=True)
class AddedFiles:
    """One file per table. None: no file."""

    accelerators: Path | None = None
    presets: Path | None = None
    pod_profiles: Path | None = None


def load_catalog(files: AddedFiles) -> tuple[Catalog, tuple[InvalidRow, ...]]:
    """Return the catalog with the rows of all files, and the rows that it does not include."""
    hardware, models = load_accelerators(files.accelerators), load_presets(files.presets)
    profiles = load_profiles(files.pod_profiles, hardware.hardware.accelerators)
    catalog = Catalog(hardware.hardware.with_profiles(profiles.profiles), models.presets)
    return catalog, (*hardware.invalid_rows, *models.invalid_rows, *profiles.invalid_rows)
