"""DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437) and Kimi K2 (arXiv 2507.20534)."""

from typing import Any

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.huggingface.families.deepseek import BIAS_RATE
from trainingjob_api.huggingface.scaling_fields import scale_yarn
from trainingjob_api.presets.preset import Preset, dims, drop_no_tokens, hub

MAXTEXT = "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/configs/models"
SMALL_TEST = "A small model with the layers of DeepSeek-V3, for tests."


def _latent(query_rank: int | None = 1536, key_value_rank: int = 512) -> Section:
    ranks = {"queryRank": query_rank, "keyValueRank": key_value_rank}
    widths = {"ropeDim": 64, "noRopeDim": 128, "valueDim": 128}
    return {name: value for name, value in (ranks | widths).items() if value is not None}


def _decoder(
    size: Section,
    latent: Section,
    experts: Section,
    *,
    dense: int,
    factor: float = 40.0,
    mscale: float = 1.0,
    theta: float = 10000.0,
    **yarn: Any,
) -> Section:
    """Return a model section: latent attention, `dense` leading layers without experts, and positions by YaRN.

    Queries and keys have no factor for the scaled positions. The scores have its square instead.
    """
    width = latent["ropeDim"] + latent["noRopeDim"]
    scaling = {"type": "yarn", "factor": factor, "originalLength": 4096, "yarn": {"attentionFactor": 1.0, **yarn}}
    return {
        **size,
        "norm": {"epsilon": 1e-6},
        "attention": {"scale": width**-0.5 * scale_yarn(factor, mscale) ** 2},
        "latentAttention": latent,
        "rope": {"theta": theta, "interleaved": True, "scaling": scaling},
        "layers": {"leading": [{"count": dense, "feedForward": "dense"}]},
        "experts": drop_no_tokens(experts),
    }


def _v2_experts(count: int, width: int, scale: float, groups: Section | None = None) -> Section:
    experts = {"count": count, "perToken": 6, "mlpDim": width, "shared": 2, "weightScale": scale}
    return experts | ({"groups": {**groups, "score": "best"}} if groups else {})


def _v3_experts(count: int, width: int, scale: float, groups: Section | None = None) -> Section:
    """Return experts that a bias balances."""
    experts = {"count": count, "perToken": 8, "mlpDim": width, "shared": 1, "weightScale": scale}
    options = {"scoring": "sigmoid", "normalizeWeights": True, "balance": {"biasRate": BIAS_RATE}}
    return experts | options | ({"groups": groups} if groups else {})


V3 = _decoder(
    dims(vocab=129280, layers=61, embed=7168, mlp=18432, heads=128),
    _latent(),
    _v3_experts(256, 2048, 2.5, groups={"count": 8, "perToken": 4}),
    dense=3,
)
V3_PARAMETERS = 671_026_419_200
V3_NOTE = (
    "The hub counts 684,531,386,000. A layer that predicts a second token, with copies of embedding and head, has "
    "13,463,426,304. Scales of float8 blocks have 41,540,496."
)

PRESETS = (
    Preset(
        name="deepseek2-16b",
        source=hub("deepseek-ai/DeepSeek-V2-Lite"),
        parameters=15_706_484_224,
        context=163840,
        model=_decoder(
            dims(vocab=102400, layers=27, embed=2048, mlp=10944, heads=16),
            _latent(query_rank=None),
            _v2_experts(64, 1408, 1.0),
            dense=1,
            mscale=0.707,
        ),
    ),
    Preset(
        name="deepseek2-236b",
        source=hub("deepseek-ai/DeepSeek-V2"),
        parameters=235_741_434_880,
        context=163840,
        model=_decoder(
            dims(vocab=102400, layers=60, embed=5120, mlp=12288, heads=128),
            _latent(),
            _v2_experts(160, 1536, 16.0, groups={"count": 8, "perToken": 3}),
            dense=1,
            mscale=0.707,
        ),
    ),
    Preset("deepseek3-671b", hub("deepseek-ai/DeepSeek-V3"), V3_PARAMETERS, 163840, V3, V3_NOTE),
    *(
        Preset(
            name=f"deepseek3-671b-{suffix}",
            source=hub("deepseek-ai/DeepSeek-V3"),
            parameters=V3_PARAMETERS,
            context=163840,
            model=V3,
            note="The same network as deepseek3-671b: MaxText names a way to shard it.",
        )
        for suffix in ("2dfsdp", "batchsplit")
    ),
    Preset(
        name="deepseek3-test",
        source=f"{MAXTEXT}/deepseek3-test.yml",
        parameters=15_851_427_840,
        context=163840,
        model=_decoder(
            dims(vocab=129280, layers=61, embed=512, mlp=18432, heads=128),
            _latent(),
            _v3_experts(256, 512, 2.5),
            dense=3,
        ),
        note=SMALL_TEST,
    ),
    Preset(
        name="deepseek3-tiny",
        source=f"{MAXTEXT}/deepseek3-tiny.yml",
        parameters=33_706_448,
        context=163840,
        model=_decoder(
            dims(vocab=129280, layers=61, embed=64, mlp=64, heads=4),
            _latent(query_rank=32, key_value_rank=16),
            _v3_experts(16, 64, 2.5),
            dense=3,
        ),
        note=SMALL_TEST,
    ),
    Preset(
        name="kimi-k2-1t",
        source=hub("moonshotai/Kimi-K2-Base"),
        parameters=1_026_408_232_448,
        context=131072,
        model=_decoder(
            dims(vocab=163840, layers=61, embed=7168, mlp=18432, heads=64),
            _latent(),
            _v3_experts(384, 2048, 2.827),
            dense=1,
            factor=32.0,
            theta=50000.0,
            betaFast=1.0,
        ),
        note="The hub counts 1,026,470,731,056, with 62,495,192 scales of float8 blocks and 3,416 other values.",
    ),
)
