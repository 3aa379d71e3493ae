"""Llama 2, 3, 3.1, 3.2 and 3.3 (arXiv 2307.09288 and 2407.21783)."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, hub

NORM: Section = {"norm": {"epsilon": 1e-5}}
LLAMA2_VOCAB, LLAMA3_VOCAB = 32000, 128256
LLAMA3: Section = {**NORM, "rope": {"theta": 500000.0}}


def scale_rope(factor: float) -> Section:
    """Return the options that Llama 3 has since version 3.1, which trains at 128k tokens."""
    scaling = {"type": "llama3", "factor": factor, "originalLength": 8192}
    return {**NORM, "rope": {"theta": 500000.0, "scaling": scaling}}


SIZE_8B = dims(vocab=LLAMA3_VOCAB, layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8)
SIZE_70B = dims(vocab=LLAMA3_VOCAB, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8)
SIZE_405B = dims(vocab=LLAMA3_VOCAB, layers=126, embed=16384, mlp=53248, heads=128, kv_heads=8)

PRESETS = (
    Preset(
        name="llama2-7b",
        source=hub("meta-llama/Llama-2-7b-hf"),
        parameters=6_738_415_616,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=32, embed=4096, mlp=11008, heads=32) | NORM,
    ),
    Preset(
        name="llama2-13b",
        source=hub("meta-llama/Llama-2-13b-hf"),
        parameters=13_015_864_320,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=40, embed=5120, mlp=13824, heads=40) | NORM,
    ),
    Preset(
        name="llama2-70b",
        source=hub("meta-llama/Llama-2-70b-hf"),
        parameters=68_976_648_192,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8) | NORM,
    ),
    Preset(
        name="llama3-8b",
        source=hub("meta-llama/Meta-Llama-3-8B"),
        parameters=8_030_261_248,
        context=8192,
        model=SIZE_8B | LLAMA3,
    ),
    Preset(
        name="llama3-70b",
        source=hub("meta-llama/Meta-Llama-3-70B"),
        parameters=70_553_706_496,
        context=8192,
        model=SIZE_70B | LLAMA3,
    ),
    *(
        Preset(
            name=f"llama3.1-8b{suffix}",
            source=hub(f"meta-llama/Llama-3.1-8B{suffix}"),
            parameters=8_030_261_248,
            context=131072,
            model=SIZE_8B | scale_rope(8.0),
        )
        for suffix in ("", "-Instruct")
    ),
    *(
        Preset(
            name=f"llama3.1-70b{suffix}",
            source=hub(f"meta-llama/Llama-3.1-70B{suffix}"),
            parameters=70_553_706_496,
            context=131072,
            model=SIZE_70B | scale_rope(8.0),
        )
        for suffix in ("", "-Instruct")
    ),
    Preset(
        name="llama3.1-405b",
        source=hub("meta-llama/Llama-3.1-405B"),
        parameters=405_853_388_800,
        context=131072,
        model=SIZE_405B | scale_rope(8.0),
        note="The first publication had 16 key and value heads, of which 8 were copies.",
    ),
    Preset(
        name="llama3.2-1b",
        source=hub("meta-llama/Llama-3.2-1B"),
        parameters=1_235_814_400,
        context=131072,
        model=dims(vocab=LLAMA3_VOCAB, layers=16, embed=2048, mlp=8192, heads=32, kv_heads=8)
        | {"tieEmbeddings": True}
        | scale_rope(32.0),
    ),
    Preset(
        name="llama3.2-3b",
        source=hub("meta-llama/Llama-3.2-3B"),
        parameters=3_212_749_824,
        context=131072,
        model=dims(vocab=LLAMA3_VOCAB, layers=28, embed=3072, mlp=8192, heads=24, kv_heads=8)
        | {"tieEmbeddings": True}
        | scale_rope(32.0),
    ),
    Preset(
        name="llama3.3-70b",
        source=hub("meta-llama/Llama-3.3-70B-Instruct"),
        parameters=70_553_706_496,
        context=131072,
        model=SIZE_70B | scale_rope(8.0),
    ),
)
