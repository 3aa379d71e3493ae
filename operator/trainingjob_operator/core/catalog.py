"""What the jobs of a cluster can name: accelerators and presets, built in or added by an administrator."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN as BUILTIN_HARDWARE


@dataclass(frozen=True)
class Catalog:
    """Accelerators and presets by name."""

    hardware: Hardware = BUILTIN_HARDWARE
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)

    @property
    def added_presets(self) -> tuple[Preset, ...]:
        """Return the presets that are not built in."""
        return tuple(preset for name, preset in self.presets.items() if name not in PRESETS)


BUILTIN = Catalog()
