"""Qwen2.5 (arXiv 2412.15115) and Qwen3 (arXiv 2505.09388)."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, hub

QWEN3_VOCAB = 151936
QWEN3: Section = {
    "attention": {"queryKeyNorm": "perHead"},
    "norm": {"epsilon": 1e-6},
    "rope": {"theta": 1000000.0},
}

PRESETS = (
    Preset(
        name="qwen3-8b",
        source=hub("Qwen/Qwen3-8B"),
        parameters=8_190_735_360,
        context=40960,
        model=dims(vocab=QWEN3_VOCAB, layers=36, embed=4096, mlp=12288, heads=32, kv_heads=8, head=128) | QWEN3,
    ),
)
