"""GPT-2, the GPT-3 of MaxText's benchmarks (arXiv 2005.14165), and gpt-oss (arXiv 2508.10925)."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, drop_no_tokens, hub

ALL_PROJECTIONS = ["query", "key", "value", "out"]
MAXTEXT = "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/configs/models"


def _gpt(positions: int, activation: str) -> Section:
    """Return the options of GPT-2 and GPT-3: layer norms, biases, and a learned table of positions."""
    return {
        "positions": "learned",
        "maxPositions": positions,
        "tieEmbeddings": True,
        "attention": {"bias": ALL_PROJECTIONS},
        "mlp": {"activation": activation, "gated": False, "bias": True},
        "norm": {"type": "layer"},
    }


def _gpt2(layers: int, embed: int, heads: int) -> Section:
    return dims(vocab=50257, layers=layers, embed=embed, mlp=4 * embed, heads=heads) | _gpt(1024, "geluTanh")


def _gpt3(vocab: int, layers: int, embed: int, heads: int, positions: int = 16384) -> Section:
    size = dims(vocab=vocab, layers=layers, embed=embed, mlp=4 * embed, heads=heads)
    options = _gpt(positions, "geluTanh")
    return {**size, **options, "norm": {**options["norm"], "zeroCentered": True}}


def _masks(total: str, layers: int) -> str:
    return f"The hub counts {total} more: a causal mask of 1,024 x 1,024 in each of {layers} layers."


def _gpt_oss(layers: int, num_experts: int) -> Section:
    """Return the model section of gpt-oss."""
    experts = {"count": num_experts, "perToken": 4, "routerBias": True, "normalizeWeights": True}
    scaling = {"type": "yarn", "factor": 32.0, "originalLength": 4096, "yarn": {"truncate": False}}
    return {
        **dims(vocab=201088, layers=layers, embed=2880, mlp=2880, heads=64, kv_heads=8, head=64),
        "attention": {"bias": ALL_PROJECTIONS, "sinks": True, "window": 128},
        "mlp": {"activation": "quickGelu", "bias": True, "clip": 7.0, "linearOffset": 1.0},
        "rope": {"theta": 150000.0, "scaling": scaling},
        "layers": {"pattern": [{}, {"attention": "full"}]},
        "experts": drop_no_tokens(experts | {"balance": {"lossWeight": 0.9}}),
    }


GPT3_NOTE = "The original alternates dense and banded sparse attention. This one is dense, as in MaxText and MLPerf."

PRESETS = (
    Preset("gpt2", hub("openai-community/gpt2"), 124_439_808, 1024, _gpt2(12, 768, 12), _masks("12,582,912", 12)),
    Preset(
        name="gpt2-medium",
        source=hub("openai-community/gpt2-medium"),
        parameters=354_823_168,
        context=1024,
        model=_gpt2(24, 1024, 16),
        note=_masks("25,165,824", 24),
    ),
    Preset(
        name="gpt2-large",
        source=hub("openai-community/gpt2-large"),
        parameters=774_030_080,
        context=1024,
        model=_gpt2(36, 1280, 20),
        note=_masks("37,748,736", 36),
    ),
    Preset(
        name="gpt2-xl",
        source=hub("openai-community/gpt2-xl"),
        parameters=1_557_611_200,
        context=1024,
        model=_gpt2(48, 1600, 25),
        note=_masks("50,331,648", 48),
    ),
    Preset("gpt3-52k", f"{MAXTEXT}/gpt3-52k.yml", 52_464, 2048, _gpt3(1024, 1, 16, 2, positions=2048)),
    Preset("gpt3-6b", f"{MAXTEXT}/gpt3-6b.yml", 5_588_736_000, 16384, _gpt3(32768, 48, 3072, 12)),
    Preset("gpt3-22b", f"{MAXTEXT}/gpt3-22b.yml", 22_049_107_968, 16384, _gpt3(32768, 48, 6144, 24)),
    Preset(
        name="gpt3-175b",
        source=f"{MAXTEXT}/gpt3-175b.yml",
        parameters=174_780_997_632,
        context=16384,
        model=_gpt3(50304, 96, 12288, 96),
        note=GPT3_NOTE,
    ),
    Preset("gpt-oss-20b", hub("openai/gpt-oss-20b"), 20_914_757_184, 131072, _gpt_oss(24, 32)),
    Preset("gpt-oss-120b", hub("openai/gpt-oss-120b"), 116_829_156_672, 131072, _gpt_oss(36, 128)),
)
