"""Gemma 1 to 3 (arXiv 2403.08295, 2408.00118 and 2503.19786). The presets of Gemma 3 have the decoder of text."""

import math

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, hub

VOCAB, GEMMA3_TEXT_VOCAB, GEMMA3_VOCAB = 256000, 262144, 262208
"""Rows of the embedding table: of Gemma 1 and 2, and of Gemma 3 without and with images."""
PADDING = "MaxText pads the embedding table to 256,128 rows."
VISION = "a vision tower and its projector have"


def _common(embed: int) -> Section:
    """Return the options of all versions."""
    return {
        "tieEmbeddings": True,
        "embeddingScale": math.sqrt(embed),
        "mlp": {"activation": "geluTanh"},
        "norm": {"epsilon": 1e-6, "zeroCentered": True},
    }


def _both_norms(embed: int) -> Section:
    """Return the options of versions 2 and 3, which have norms before and after each part."""
    common = _common(embed)
    return {**common, "norm": {**common["norm"], "placement": "both"}}


def _gemma2(embed: int, query_width: int = 256) -> Section:
    """Return the options of version 2; `query_width` is the width by which scores are scaled."""
    return {
        **_both_norms(embed),
        "attention": {"scale": query_width**-0.5, "softCap": 50.0, "window": 4096},
        "logits": {"softCap": 30.0},
        "layers": {"pattern": [{}, {"attention": "full"}]},
    }


def _gemma3(embed: int, *, window: int = 1024, scaling: float | None = 8.0, query_width: int = 256) -> Section:
    """Return the options of version 3: five layers with a window for each one without."""
    rope: Section = {"theta": 1000000.0}
    if scaling:
        rope["scaling"] = {"type": "linear", "factor": scaling}
    return {
        **_both_norms(embed),
        "attention": {"queryKeyNorm": "perHead", "scale": query_width**-0.5, "window": window},
        "rope": rope,
        "layers": {"pattern": [{"count": 5, "rope": {"theta": 10000.0}}, {"attention": "full"}]},
    }


GEMMA1 = (
    Preset(
        name="gemma-2b",
        source=hub("google/gemma-2b"),
        parameters=2_506_172_416,
        context=8192,
        model=dims(vocab=VOCAB, layers=18, embed=2048, mlp=16384, heads=8, kv_heads=1, head=256) | _common(2048),
        note=PADDING,
    ),
    Preset(
        name="gemma-7b",
        source=hub("google/gemma-7b"),
        parameters=8_537_680_896,
        context=8192,
        model=dims(vocab=VOCAB, layers=28, embed=3072, mlp=24576, heads=16, head=256) | _common(3072),
        note=PADDING,
    ),
)
GEMMA2 = (
    Preset(
        name="gemma2-2b",
        source=hub("google/gemma-2-2b"),
        parameters=2_614_341_888,
        context=8192,
        model=dims(vocab=VOCAB, layers=26, embed=2304, mlp=9216, heads=8, kv_heads=4, head=256) | _gemma2(2304),
        note=PADDING,
    ),
    Preset(
        name="gemma2-9b",
        source=hub("google/gemma-2-9b"),
        parameters=9_241_705_984,
        context=8192,
        model=dims(vocab=VOCAB, layers=42, embed=3584, mlp=14336, heads=16, kv_heads=8, head=256) | _gemma2(3584),
        note=PADDING,
    ),
    Preset(
        name="gemma2-27b",
        source=hub("google/gemma-2-27b"),
        parameters=27_227_128_320,
        context=8192,
        model=dims(vocab=VOCAB, layers=46, embed=4608, mlp=36864, heads=32, kv_heads=16, head=128)
        | _gemma2(4608, query_width=144),
        note=PADDING,
    ),
)
GEMMA3 = (
    Preset(
        name="gemma3-270m",
        source=hub("google/gemma-3-270m"),
        parameters=268_098_176,
        context=32768,
        model=dims(vocab=GEMMA3_TEXT_VOCAB, layers=18, embed=640, mlp=2048, heads=4, kv_heads=1, head=256)
        | _gemma3(640, window=512, scaling=None),
    ),
    Preset(
        name="gemma3-1b",
        source=hub("google/gemma-3-1b-pt"),
        parameters=999_885_952,
        context=32768,
        model=dims(vocab=GEMMA3_TEXT_VOCAB, layers=26, embed=1152, mlp=6912, heads=4, kv_heads=1, head=256)
        | _gemma3(1152, window=512, scaling=None),
    ),
    Preset(
        name="gemma3-4b",
        source=hub("google/gemma-3-4b-pt"),
        parameters=3_880_263_168,
        context=131072,
        model=dims(vocab=GEMMA3_VOCAB, layers=34, embed=2560, mlp=10240, heads=8, kv_heads=4, head=256) | _gemma3(2560),
        note=f"The hub counts 4,300,079,472: {VISION} 419,816,304.",
    ),
    Preset(
        name="gemma3-12b",
        source=hub("google/gemma-3-12b-pt"),
        parameters=11_766_034_176,
        context=131072,
        model=dims(vocab=GEMMA3_VOCAB, layers=48, embed=3840, mlp=15360, heads=16, kv_heads=8, head=256)
        | _gemma3(3840),
        note=f"The hub counts 12,187,325,040: {VISION} 421,290,864.",
    ),
    Preset(
        name="gemma3-27b",
        source=hub("google/gemma-3-27b-pt"),
        parameters=27_009_346_304,
        context=131072,
        model=dims(vocab=GEMMA3_VOCAB, layers=62, embed=5376, mlp=21504, heads=32, kv_heads=16, head=128)
        | _gemma3(5376, query_width=168),
        note=f"The hub counts 27,432,406,640: {VISION} 423,060,336.",
    ),
)
PRESETS = (*GEMMA1, *GEMMA2, *GEMMA3)
