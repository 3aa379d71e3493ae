"""Llama 2 to 3.3 (arXiv 2307.09288 and 2407.21783), and other models of their architecture."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, hub

TIED: Section = {"tieEmbeddings": True}
LLAMA2_VOCAB, LLAMA3_VOCAB, SMOLLM2_VOCAB = 32000, 128256, 49152
LLAMA3: Section = {"rope": {"theta": 500000.0}}


def scale_rope(factor: float) -> Section:
    """Return the options that Llama 3 has since version 3.1, which trains at 128k tokens."""
    scaling = {"type": "llama3", "factor": factor, "originalLength": 8192}
    return {"rope": {"theta": 500000.0, "scaling": scaling}}


SIZE_8B = dims(vocab=LLAMA3_VOCAB, layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8)
SIZE_70B = dims(vocab=LLAMA3_VOCAB, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8)


def _base_and_instruct(name: str, repository: str, parameters: int, model: Section) -> tuple[Preset, Preset]:
    """Return a base model of Llama 3.1 and the one that follows instructions, which is the same network."""
    base, instructed = (
        Preset(f"{name}{suffix}", hub(f"{repository}{suffix}"), parameters, 131072, model)
        for suffix in ("", "-Instruct")
    )
    return base, instructed


PRESETS = (
    Preset(
        name="llama2-7b",
        source=hub("meta-llama/Llama-2-7b-hf"),
        parameters=6_738_415_616,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=32, embed=4096, mlp=11008, heads=32),
        note="The hub counts 2,048 more: a table of 64 rotary frequencies in each layer.",
    ),
    Preset(
        name="llama2-13b",
        source=hub("meta-llama/Llama-2-13b-hf"),
        parameters=13_015_864_320,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=40, embed=5120, mlp=13824, heads=40),
        note="The hub counts 2,560 more: a table of 64 rotary frequencies in each layer.",
    ),
    Preset(
        name="llama2-70b",
        source=hub("meta-llama/Llama-2-70b-hf"),
        parameters=68_976_648_192,
        context=4096,
        model=dims(vocab=LLAMA2_VOCAB, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8),
    ),
    Preset("llama3-8b", hub("meta-llama/Meta-Llama-3-8B"), 8_030_261_248, 8192, SIZE_8B | LLAMA3),
    Preset("llama3-70b", hub("meta-llama/Meta-Llama-3-70B"), 70_553_706_496, 8192, SIZE_70B | LLAMA3),
    *_base_and_instruct("llama3.1-8b", "meta-llama/Llama-3.1-8B", 8_030_261_248, SIZE_8B | scale_rope(8.0)),
    *_base_and_instruct("llama3.1-70b", "meta-llama/Llama-3.1-70B", 70_553_706_496, SIZE_70B | scale_rope(8.0)),
    Preset(
        name="llama3.1-405b",
        source=hub("meta-llama/Llama-3.1-405B"),
        parameters=405_853_388_800,
        context=131072,
        model=dims(vocab=LLAMA3_VOCAB, layers=126, embed=16384, mlp=53248, heads=128, kv_heads=8) | scale_rope(8.0),
    ),
    Preset(
        name="llama3.2-1b",
        source=hub("meta-llama/Llama-3.2-1B"),
        parameters=1_235_814_400,
        context=131072,
        model=dims(vocab=LLAMA3_VOCAB, layers=16, embed=2048, mlp=8192, heads=32, kv_heads=8) | TIED | scale_rope(32.0),
    ),
    Preset(
        name="llama3.2-3b",
        source=hub("meta-llama/Llama-3.2-3B"),
        parameters=3_212_749_824,
        context=131072,
        model=dims(vocab=LLAMA3_VOCAB, layers=28, embed=3072, mlp=8192, heads=24, kv_heads=8) | TIED | scale_rope(32.0),
    ),
    Preset(
        name="llama3.3-70b",
        source=hub("meta-llama/Llama-3.3-70B-Instruct"),
        parameters=70_553_706_496,
        context=131072,
        model=SIZE_70B | scale_rope(8.0),
    ),
    Preset(
        name="tinyllama-1.1b",
        source=hub("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T"),
        parameters=1_100_048_384,
        context=2048,
        model=dims(vocab=LLAMA2_VOCAB, layers=22, embed=2048, mlp=5632, heads=32, kv_heads=4),
    ),
    Preset(
        name="smollm2-135m",
        source=hub("HuggingFaceTB/SmolLM2-135M"),
        parameters=134_515_008,
        context=8192,
        model=dims(vocab=SMOLLM2_VOCAB, layers=30, embed=576, mlp=1536, heads=9, kv_heads=3)
        | TIED
        | {"rope": {"theta": 100000.0}, "init": {"std": 576**-0.5}},
    ),
    Preset(
        name="smollm2-360m",
        source=hub("HuggingFaceTB/SmolLM2-360M"),
        parameters=361_821_120,
        context=8192,
        model=dims(vocab=SMOLLM2_VOCAB, layers=32, embed=960, mlp=2560, heads=15, kv_heads=5)
        | TIED
        | {"rope": {"theta": 100000.0}},
    ),
    Preset(
        name="smollm2-1.7b",
        source=hub("HuggingFaceTB/SmolLM2-1.7B"),
        parameters=1_711_376_384,
        context=8192,
        model=dims(vocab=SMOLLM2_VOCAB, layers=24, embed=2048, mlp=8192, heads=32)
        | TIED
        | {"rope": {"theta": 130000.0}},
    ),
    Preset(
        name="smollm3-3b",
        source=hub("HuggingFaceTB/SmolLM3-3B-Base"),
        parameters=3_075_098_624,
        context=65536,
        model=dims(vocab=LLAMA3_VOCAB, layers=36, embed=2048, mlp=11008, heads=16, kv_heads=4)
        | TIED
        | {
            "norm": {"epsilon": 1e-6},
            "rope": {"theta": 5000000.0},
            "layers": {"pattern": [{"count": 3}, {"positions": "none"}]},
        },
    ),
    Preset(
        name="phi3-mini-4k",
        source=hub("microsoft/Phi-3-mini-4k-instruct"),
        parameters=3_821_079_552,
        context=4096,
        model=dims(vocab=32064, layers=32, embed=3072, mlp=8192, heads=32) | {"attention": {"window": 2047}},
    ),
    Preset(
        name="phi4",
        source=hub("microsoft/phi-4"),
        parameters=14_659_507_200,
        context=16384,
        model=dims(vocab=100352, layers=40, embed=5120, mlp=17920, heads=40, kv_heads=10)
        | {"rope": {"theta": 250000.0}},
    ),
)
