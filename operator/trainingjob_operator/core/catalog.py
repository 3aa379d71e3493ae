"""What the jobs of a cluster can name: accelerators and presets, built in or added by an administrator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.planner.hardware import Accelerator, Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN as BUILTIN_HARDWARE


@dataclass(frozen=True)
class Catalog:
    """Accelerators and presets by name."""

    hardware: Hardware = BUILTIN_HARDWARE
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)

    @property
    def added(self) -> "AddedRows":
        """Return all accelerators, and the presets that are not built in."""
        presets = (preset for name, preset in self.presets.items() if name not in PRESETS)
        return AddedRows(tuple(self.hardware.accelerators_by_name.values()), tuple(presets))


class AddedRows(NamedTuple):
    """What makes a catalog of the built-in one, as another process gets it."""

    accelerators: tuple[Accelerator, ...] = ()
    presets: tuple[Preset, ...] = ()

    def add(self) -> Catalog:
        """Return the built-in catalog with these rows."""
        presets = {preset.name: preset for preset in self.presets}
        return Catalog(BUILTIN_HARDWARE.with_rows(self.accelerators), {**PRESETS, **presets})


BUILTIN = Catalog()
