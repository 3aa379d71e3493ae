"""What the jobs of a cluster can name: accelerators, presets and pod profiles, built in or added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.planner.hardware import Accelerator, Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN as BUILTIN_HARDWARE
from trainingjob_operator.core.planner.pod_profile import PodProfile


@dataclass(frozen=True)
class Catalog:
    """Accelerators with the profiles of their pods, and presets by name."""

    hardware: Hardware = BUILTIN_HARDWARE
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)

    @property
    def added(self) -> "AddedRows":
        """Return all accelerators and profiles, and the presets that are not built in."""
        presets = (preset for name, preset in self.presets.items() if name not in PRESETS)
        hardware = self.hardware
        return AddedRows(
            tuple(hardware.accelerators_by_name.values()), tuple(presets), tuple(hardware.profiles.values())
        )


class AddedRows(NamedTuple):
    """What makes a catalog of the built-in one, as another process gets it."""

    accelerators: tuple[Accelerator, ...] = ()
    presets: tuple[Preset, ...] = ()
    profiles: tuple[PodProfile, ...] = ()

    def add(self) -> Catalog:
        """Return the built-in catalog with these rows."""
        presets = {preset.name: preset for preset in self.presets}
        hardware = BUILTIN_HARDWARE.with_rows(self.accelerators).with_profiles(self.profiles)
        return Catalog(hardware, {**PRESETS, **presets})


BUILTIN = Catalog()
