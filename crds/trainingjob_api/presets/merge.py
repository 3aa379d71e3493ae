"""The model section of a job, with the values of its preset where the job sets none."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainingjob_api.presets.preset import Preset
from trainingjob_api.problem import Problem

MODEL = "spec.model"
MAX_NEAREST = 3
KIND = "type"
"""The field that names one of several alternatives."""


def merge_preset(section: Any, presets: Mapping[str, Preset], path: str = MODEL) -> tuple[Any, Problem | None]:
    """Return the model section at a path with the values of its preset, or the problem of an unknown preset.

    A section without a preset, or of another form than an object, is returned as it is.
    """
    name = section.get("preset") if isinstance(section, dict) else None
    if not isinstance(name, str):
        return section, None
    preset = presets.get(name)
    if preset is None:
        return section, _unknown(path, name, presets)
    return _merge(preset.model, section), None


def _merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with overrides. Lists, and objects of another type, are replaced as a whole."""
    merged = dict(values)
    for field, override in overrides.items():
        merged[field] = _merge_value(merged.get(field), override)
    return merged


def _merge_value(value: Any, override: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(override, dict):
        return override
    return _merge(value, override) if override.get(KIND, value.get(KIND)) == value.get(KIND) else override


def _unknown(path: str, name: str, presets: Mapping[str, Preset]) -> Problem:
    nearest = tuple(get_close_matches(name.lower(), presets, MAX_NEAREST))
    shown = name if len(name) <= 63 else f"{name[:60]}..."
    message = f"{shown} is not a preset. `trainingjob presets` lists all {len(presets)}."
    return Problem(f"{path}.preset", name, message, nearest)
