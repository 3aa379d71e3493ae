"""OLMo 2 (arXiv 2501.00656) and OLMo 3: norms after each part, and norms of all queries and keys together."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, hub

OLMO2_VOCAB, OLMO3_VOCAB = 100352, 100278
OLMO2: Section = {
    "attention": {"queryKeyNorm": "perProjection"},
    "norm": {"epsilon": 1e-6, "placement": "post"},
    "rope": {"theta": 500000.0},
}
OLMO3: Section = {
    **OLMO2,
    "attention": {**OLMO2["attention"], "window": 4096},
    "layers": {"pattern": [{"count": 3}, {"attention": "full"}]},
}
YARN: Section = {
    **OLMO3,
    "rope": {"theta": 500000.0, "scaling": {"type": "yarn", "factor": 8.0, "originalLength": 8192}},
    "layers": {"pattern": [{"count": 3, "rope": {"theta": 500000.0}}, {"attention": "full"}]},
}
"""Since the third stage of the training, layers without a window have scaled positions."""

SIZE_7B = dims(vocab=OLMO3_VOCAB, layers=32, embed=4096, mlp=11008, heads=32)

PRESETS = (
    Preset(
        name="olmo2-1b",
        source=hub("allenai/OLMo-2-0425-1B"),
        parameters=1_484_916_736,
        context=4096,
        model=dims(vocab=OLMO2_VOCAB, layers=16, embed=2048, mlp=8192, heads=16) | OLMO2,
    ),
    Preset(
        name="olmo2-7b",
        source=hub("allenai/OLMo-2-1124-7B"),
        parameters=7_298_617_344,
        context=4096,
        model=dims(vocab=OLMO2_VOCAB, layers=32, embed=4096, mlp=11008, heads=32) | OLMO2,
    ),
    Preset(
        name="olmo2-13b",
        source=hub("allenai/OLMo-2-1124-13B"),
        parameters=13_716_198_400,
        context=4096,
        model=dims(vocab=OLMO2_VOCAB, layers=40, embed=5120, mlp=13824, heads=40) | OLMO2,
    ),
    Preset(
        name="olmo2-32b",
        source=hub("allenai/OLMo-2-0325-32B"),
        parameters=32_234_279_936,
        context=4096,
        model=dims(vocab=OLMO2_VOCAB, layers=64, embed=5120, mlp=27648, heads=40, kv_heads=8) | OLMO2,
    ),
    Preset("olmo3-7b", hub("allenai/Olmo-3-1025-7B"), 7_298_011_136, 65536, SIZE_7B | YARN),
    Preset(
        name="olmo3-7b-pt",
        source="https://huggingface.co/allenai/Olmo-3-1025-7B/blob/stage1-step1413814/config.json",
        parameters=7_298_011_136,
        context=8192,
        model=SIZE_7B | OLMO3,
        note="It is the model of the first two stages of the training, before its positions are scaled.",
    ),
    Preset(
        name="olmo3-32b",
        source=hub("allenai/Olmo-3-1125-32B"),
        parameters=32_233_522_176,
        context=65536,
        model=dims(vocab=OLMO3_VOCAB, layers=64, embed=5120, mlp=27648, heads=40, kv_heads=8) | YARN,
    ),
)
