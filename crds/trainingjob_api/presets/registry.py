"""All presets by name."""

from collections.abc import Mapping

from trainingjob_api.presets import (
    deepseek_presets,
    gemma_presets,
    gpt_presets,
    llama4_presets,
    llama_presets,
    mistral_presets,
    olmo_presets,
    qwen_presets,
)
from trainingjob_api.presets.preset import Preset, index

FAMILIES = (
    llama_presets,
    llama4_presets,
    mistral_presets,
    deepseek_presets,
    gemma_presets,
    qwen_presets,
    olmo_presets,
    gpt_presets,
)
"""The modules that declare presets, in the order of the families."""
PRESETS: Mapping[str, Preset] = index(preset for family in FAMILIES for preset in family.PRESETS)
"""The presets by name, in the order of their families."""
