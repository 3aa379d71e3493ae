"""All presets by name."""

from collections.abc import Mapping

from trainingjob_api.presets import llama_presets, qwen_presets
from trainingjob_api.presets.preset import Preset, index

FAMILIES = (llama_presets, qwen_presets)
"""The modules that declare presets, in the order of the families."""
PRESETS: Mapping[str, Preset] = index(preset for family in FAMILIES for preset in family.PRESETS)
"""The presets by name, in the order of their families."""
