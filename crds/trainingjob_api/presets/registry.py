"""All presets by name, and the published models that no model section expresses."""

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

SPARSE_INDEXER = "sparse attention with an indexer that selects keys"
DELTA_NET = "layers of linear attention (gated delta net)"
GLOBAL_HEADS = "full layers with other numbers and widths of heads, whose keys are also their values"

UNSUPPORTED: Mapping[str, str] = {
    "deepseek3.2-671b": SPARSE_INDEXER,
    "deepseek-custom": f"{SPARSE_INDEXER}, hyper-connections, and memory of n-grams",
    "gemma4-26b": f"{GLOBAL_HEADS}, and experts beside an MLP",
    "gemma4-31b": GLOBAL_HEADS,
    "qwen3-next-80b-a3b": DELTA_NET,
    "qwen3-custom-30b-a3b": "experts whose inputs are narrower than the residual stream",
    "qwen3.5-397b-a17b": DELTA_NET,
}
"""What is missing in the options of a model, by the name of a published one."""
