"""Published models that no model section expresses, and what is missing for each."""

from collections.abc import Mapping

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
"""What is missing, by the name of a model."""
