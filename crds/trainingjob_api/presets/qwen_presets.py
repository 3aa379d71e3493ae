"""Qwen2.5 (arXiv 2412.15115) and Qwen3 (arXiv 2505.09388)."""

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, drop_no_tokens, hub

SMALL_VOCAB, LARGE_VOCAB = 151936, 152064
"""Rows of the embedding table, which has a larger padding in the larger models of Qwen2.5."""
TIED: Section = {"tieEmbeddings": True}
QWEN2_BASE: Section = {"attention": {"bias": ["query", "key", "value"]}, "rope": {"theta": 1000000.0}}
QWEN2: Section = QWEN2_BASE | {"norm": {"epsilon": 1e-6}}
"""All but the larger base models have this epsilon."""


def _qwen3(theta: float = 1000000.0) -> Section:
    """Return the options of Qwen3."""
    return {"attention": {"queryKeyNorm": "perHead"}, "norm": {"epsilon": 1e-6}, "rope": {"theta": theta}}


def _experts(count: int, width: int) -> Section:
    experts = {"count": count, "perToken": 8, "mlpDim": width, "normalizeWeights": True}
    return {"experts": drop_no_tokens(experts | {"balance": {"lossWeight": 0.001}})}


def _with_base(name: str, repository: str, parameters: int, model: Section, note: str = "") -> tuple[Preset, Preset]:
    """Return a model of Qwen3 that follows instructions, and its base model, which is the same network."""
    return (
        Preset(name, hub(repository), parameters, 40960, model, note),
        Preset(f"{name}-base", hub(f"{repository}-Base"), parameters, 32768, model, note),
    )


SIZE_4B = dims(vocab=SMALL_VOCAB, layers=36, embed=2560, mlp=9728, heads=32, kv_heads=8, head=128) | TIED
SIZE_30B = dims(vocab=SMALL_VOCAB, layers=48, embed=2048, mlp=6144, heads=32, kv_heads=4, head=128) | _experts(128, 768)
SIZE_235B = dims(vocab=SMALL_VOCAB, layers=94, embed=4096, mlp=12288, heads=64, kv_heads=4, head=128) | _experts(
    128, 1536
)

QWEN2_PRESETS = (
    Preset(
        name="qwen2.5-0.5b",
        source=hub("Qwen/Qwen2.5-0.5B"),
        parameters=494_032_768,
        context=32768,
        model=dims(vocab=SMALL_VOCAB, layers=24, embed=896, mlp=4864, heads=14, kv_heads=2) | TIED | QWEN2,
    ),
    Preset(
        name="qwen2.5-1.5b",
        source=hub("Qwen/Qwen2.5-1.5B-Instruct"),
        parameters=1_543_714_304,
        context=32768,
        model=dims(vocab=SMALL_VOCAB, layers=28, embed=1536, mlp=8960, heads=12, kv_heads=2) | TIED | QWEN2,
    ),
    Preset(
        name="qwen2.5-3b",
        source=hub("Qwen/Qwen2.5-3B"),
        parameters=3_085_938_688,
        context=32768,
        model=dims(vocab=SMALL_VOCAB, layers=36, embed=2048, mlp=11008, heads=16, kv_heads=2) | TIED | QWEN2,
    ),
    Preset(
        name="qwen2.5-7b",
        source=hub("Qwen/Qwen2.5-7B-Instruct"),
        parameters=7_615_616_512,
        context=32768,
        model=dims(vocab=LARGE_VOCAB, layers=28, embed=3584, mlp=18944, heads=28, kv_heads=4) | QWEN2,
    ),
    Preset(
        name="qwen2.5-14b",
        source=hub("Qwen/Qwen2.5-14B-Instruct"),
        parameters=14_770_033_664,
        context=32768,
        model=dims(vocab=LARGE_VOCAB, layers=48, embed=5120, mlp=13824, heads=40, kv_heads=8) | QWEN2,
        note="The base model has `norm.epsilon: 1e-5`.",
    ),
    Preset(
        name="qwen2.5-32b",
        source=hub("Qwen/Qwen2.5-32B"),
        parameters=32_763_876_352,
        context=131072,
        model=dims(vocab=LARGE_VOCAB, layers=64, embed=5120, mlp=27648, heads=40, kv_heads=8) | QWEN2_BASE,
        note="The model that follows instructions has `norm.epsilon: 1e-6`.",
    ),
    Preset(
        name="qwen2.5-72b",
        source=hub("Qwen/Qwen2.5-72B-Instruct"),
        parameters=72_706_203_648,
        context=32768,
        model=dims(vocab=LARGE_VOCAB, layers=80, embed=8192, mlp=29568, heads=64, kv_heads=8) | QWEN2,
        note="The base model has `norm.epsilon: 1e-5`.",
    ),
)
QWEN3_PRESETS = (
    Preset(
        name="qwen3-0.6b",
        source=hub("Qwen/Qwen3-0.6B"),
        parameters=596_049_920,
        context=40960,
        model=dims(vocab=SMALL_VOCAB, layers=28, embed=1024, mlp=3072, heads=16, kv_heads=8, head=128)
        | TIED
        | _qwen3(),
        note="The hub counts 155,582,464 more: a stored copy of the embedding table as the output projection.",
    ),
    *_with_base(
        "qwen3-1.7b",
        "Qwen/Qwen3-1.7B",
        1_720_574_976,
        dims(vocab=SMALL_VOCAB, layers=28, embed=2048, mlp=6144, heads=16, kv_heads=8, head=128) | TIED | _qwen3(),
        note="The hub counts 311,164,928 more where a copy of the embedding table is stored as the output projection.",
    ),
    *_with_base("qwen3-4b", "Qwen/Qwen3-4B", 4_022_468_096, SIZE_4B | _qwen3()),
    Preset(
        name="qwen3-4b-thinking-2507",
        source=hub("Qwen/Qwen3-4B-Thinking-2507"),
        parameters=4_022_468_096,
        context=262144,
        model=SIZE_4B | _qwen3(theta=5000000.0),
    ),
    *_with_base(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        8_190_735_360,
        dims(vocab=SMALL_VOCAB, layers=36, embed=4096, mlp=12288, heads=32, kv_heads=8, head=128) | _qwen3(),
    ),
    *_with_base(
        "qwen3-14b",
        "Qwen/Qwen3-14B",
        14_768_307_200,
        dims(vocab=SMALL_VOCAB, layers=40, embed=5120, mlp=17408, heads=40, kv_heads=8, head=128) | _qwen3(),
    ),
    Preset(
        name="qwen3-32b",
        source=hub("Qwen/Qwen3-32B"),
        parameters=32_762_123_264,
        context=40960,
        model=dims(vocab=SMALL_VOCAB, layers=64, embed=5120, mlp=25600, heads=64, kv_heads=8, head=128) | _qwen3(),
    ),
    *_with_base("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 30_532_122_624, SIZE_30B | _qwen3()),
    Preset(
        name="qwen3-30b-a3b-2507",
        source=hub("Qwen/Qwen3-30B-A3B-Instruct-2507"),
        parameters=30_532_122_624,
        context=262144,
        model=SIZE_30B | _qwen3(theta=10000000.0),
    ),
    Preset(
        name="qwen3-omni-30b-a3b",
        source=hub("Qwen/Qwen3-Omni-30B-A3B-Instruct"),
        parameters=30_532_646_912,
        context=65536,
        model=SIZE_30B | {"vocabSize": LARGE_VOCAB, "mlpDim": 768} | _qwen3(),
        note="It is the decoder of text, the thinker. Encoders of images and sound, and the talker, are left out.",
    ),
    Preset("qwen3-235b-a22b", hub("Qwen/Qwen3-235B-A22B"), 235_093_634_560, 40960, SIZE_235B | _qwen3()),
    Preset(
        name="qwen3-235b-a22b-2507",
        source=hub("Qwen/Qwen3-235B-A22B-Instruct-2507"),
        parameters=235_093_634_560,
        context=262144,
        model=SIZE_235B | _qwen3(theta=5000000.0),
    ),
    Preset(
        name="qwen3-480b-a35b",
        source=hub("Qwen/Qwen3-Coder-480B-A35B-Instruct"),
        parameters=480_154_875_392,
        context=262144,
        model=dims(vocab=SMALL_VOCAB, layers=62, embed=6144, mlp=8192, heads=96, kv_heads=8, head=128)
        | _experts(160, 2560)
        | _qwen3(theta=10000000.0),
    ),
)
PRESETS = (*QWEN2_PRESETS, *QWEN3_PRESETS)
