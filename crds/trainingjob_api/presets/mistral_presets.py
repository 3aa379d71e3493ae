"""Mistral (arXiv 2310.06825) and Mixtral (arXiv 2401.04088)."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, drop_no_tokens, hub

LATER_VOCAB, TEKKEN_VOCAB = 32768, 131072
"""Token ids since the third tokenizer, and those of Tekken."""
ROPE: Section = {"rope": {"theta": 1000000.0}}


def _size_7b(vocab: int) -> Section:
    return dims(vocab=vocab, layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8)


def _experts(loss_weight: float) -> Section:
    experts = {"count": 8, "perToken": 2, "normalizeWeights": True, "balance": {"lossWeight": loss_weight}}
    return {"experts": drop_no_tokens(experts)}


SIZE_24B = dims(vocab=TEKKEN_VOCAB, layers=40, embed=5120, mlp=32768, heads=32, kv_heads=8, head=128)

PRESETS = (
    Preset(
        name="mistral-7b-v0.1",
        source=hub("mistralai/Mistral-7B-v0.1"),
        parameters=7_241_732_096,
        context=32768,
        model=_size_7b(32000) | {"attention": {"window": 4096}},
    ),
    Preset(
        name="mistral-7b",
        source=hub("mistralai/Mistral-7B-Instruct-v0.2"),
        parameters=7_241_732_096,
        context=32768,
        model=_size_7b(32000) | ROPE,
        note="It is version 0.2, the first without a window.",
    ),
    Preset(
        name="mistral-7b-v0.3",
        source=hub("mistralai/Mistral-7B-v0.3"),
        parameters=7_248_023_552,
        context=32768,
        model=_size_7b(LATER_VOCAB) | ROPE,
    ),
    Preset(
        name="mistral-nemo-12b",
        source=hub("mistralai/Mistral-Nemo-Base-2407"),
        parameters=12_247_782_400,
        context=131072,
        model=dims(vocab=TEKKEN_VOCAB, layers=40, embed=5120, mlp=14336, heads=32, kv_heads=8, head=128) | ROPE,
    ),
    Preset(
        name="mistral-small-24b",
        source=hub("mistralai/Mistral-Small-24B-Base-2501"),
        parameters=23_572_403_200,
        context=32768,
        model=SIZE_24B | {"rope": {"theta": 100000000.0}},
    ),
    Preset(
        name="mistral-small-3.1-24b",
        source=hub("mistralai/Mistral-Small-3.1-24B-Base-2503"),
        parameters=23_572_403_200,
        context=131072,
        model=SIZE_24B | {"rope": {"theta": 1000000000.0}},
        note="The hub counts 24,011,361,280: a vision tower and its projector have 438,958,080.",
    ),
    Preset(
        name="mistral-large-123b",
        source=hub("mistralai/Mistral-Large-Instruct-2407"),
        parameters=122_610_069_504,
        context=131072,
        model=dims(vocab=LATER_VOCAB, layers=88, embed=12288, mlp=28672, heads=96, kv_heads=8) | ROPE,
    ),
    Preset(
        name="mixtral-8x7b",
        source=hub("mistralai/Mixtral-8x7B-v0.1"),
        parameters=46_702_792_704,
        context=32768,
        model=_size_7b(32000) | ROPE | _experts(0.02),
    ),
    Preset(
        name="mixtral-8x22b",
        source=hub("mistralai/Mixtral-8x22B-Instruct-v0.1"),
        parameters=140_630_071_296,
        context=65536,
        model=dims(vocab=LATER_VOCAB, layers=56, embed=6144, mlp=16384, heads=48, kv_heads=8) | ROPE | _experts(0.001),
    ),
)
