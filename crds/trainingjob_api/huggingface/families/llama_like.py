"""Llama and the families that differ from it by a few options: Mistral, Mixtral, Qwen and OLMo 3.

The halves of a head that rotary positions rotate are the same in their files and in our tensors.
"""

from trainingjob_api.huggingface.config_fields import ConfigField, Field, Fixed, Option, Section, Unset
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layer_fields import LayerTypes, MistralWindow, Window
from trainingjob_api.huggingface.rope_fields import FULL, WINDOW
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import Scaling

LAYER = "model.layers.{layer}."

EMBEDDING = (
    Rule("model.embed_tokens.weight", "embedding", "v d -> v d"),
    Rule("model.norm.weight", "norm.scale", "d -> d"),
    Rule("lm_head.weight", "head", "v d -> d v"),
)
ATTENTION = (
    Rule(LAYER + "self_attn.q_proj.weight", "attention.query", "(h k) d -> d h k"),
    Rule(LAYER + "self_attn.k_proj.weight", "attention.key", "(g k) d -> d g k"),
    Rule(LAYER + "self_attn.v_proj.weight", "attention.value", "(g k) d -> d g k"),
    Rule(LAYER + "self_attn.o_proj.weight", "attention.out", "d (h k) -> h k d"),
)
NORMS_BEFORE = (
    Rule(LAYER + "input_layernorm.weight", "attention_norm.scale", "d -> d"),
    Rule(LAYER + "post_attention_layernorm.weight", "mlp_norm.scale", "d -> d"),
)
MLP = (
    Rule(LAYER + "mlp.gate_proj.weight", "mlp.gate", "f d -> d f"),
    Rule(LAYER + "mlp.up_proj.weight", "mlp.up", "f d -> d f"),
    Rule(LAYER + "mlp.down_proj.weight", "mlp.down", "d f -> f d"),
)
QUERY_KEY_NORMS = (
    Rule(LAYER + "self_attn.q_norm.weight", "attention.query_norm.scale", "k -> k"),
    Rule(LAYER + "self_attn.k_norm.weight", "attention.key_norm.scale", "k -> k"),
)
MIXTRAL_EXPERTS = (
    Rule(LAYER + "block_sparse_moe.gate.weight", "mlp.router", "e d -> d e"),
    Rule(LAYER + "block_sparse_moe.experts.{e}.w1.weight", "mlp.gate", "f d -> e d f"),
    Rule(LAYER + "block_sparse_moe.experts.{e}.w3.weight", "mlp.up", "f d -> e d f"),
    Rule(LAYER + "block_sparse_moe.experts.{e}.w2.weight", "mlp.down", "d f -> e f d"),
)
QWEN_EXPERTS = (
    Rule(LAYER + "mlp.gate.weight", "mlp.router", "e d -> d e"),
    Rule(LAYER + "mlp.experts.{e}.gate_proj.weight", "mlp.gate", "f d -> e d f"),
    Rule(LAYER + "mlp.experts.{e}.up_proj.weight", "mlp.up", "f d -> e d f"),
    Rule(LAYER + "mlp.experts.{e}.down_proj.weight", "mlp.down", "d f -> e f d"),
)
INPUT_BIASES = (
    Rule(LAYER + "self_attn.q_proj.bias", "attention.query_bias", "(h k) -> h k"),
    Rule(LAYER + "self_attn.k_proj.bias", "attention.key_bias", "(g k) -> g k"),
    Rule(LAYER + "self_attn.v_proj.bias", "attention.value_bias", "(g k) -> g k"),
)
OUTPUT_BIAS = (Rule(LAYER + "self_attn.o_proj.bias", "attention.out_bias", "d -> d"),)
NORMS_AFTER = (
    Rule(LAYER + "post_attention_layernorm.weight", "attention_output_norm.scale", "d -> d"),
    Rule(LAYER + "post_feedforward_layernorm.weight", "mlp_output_norm.scale", "d -> d"),
)
PROJECTION_NORMS = (
    Rule(LAYER + "self_attn.q_norm.weight", "attention.query_norm.scale", "q -> q"),
    Rule(LAYER + "self_attn.k_norm.weight", "attention.key_norm.scale", "q -> q"),
)
ROTARY_TABLES = ("rotary_emb.inv_freq",)
"""Tensors in older files that follow from the configuration."""

DIMS = (
    Field("vocab_size", "vocabSize"),
    Field("hidden_size", "embedDim"),
    Field("intermediate_size", "mlpDim"),
    Field("num_hidden_layers", "numLayers"),
    Field("num_attention_heads", "numHeads"),
    Field("num_key_value_heads", "numKvHeads", Unset()),
    Field("head_dim", "headDim", Unset()),
)


def common_fields(*, epsilon: float = 1e-6, theta: float = 10000.0) -> tuple[ConfigField, ...]:
    """Return the fields of all these families, with the defaults of one in `transformers`."""
    return (
        *DIMS,
        Field("rms_norm_eps", "norm.epsilon", epsilon),
        Field("tie_word_embeddings", "tieEmbeddings", default=False),
        Field("rope_theta", "rope.theta", theta),
        Field("initializer_range", "init.std", 0.02),
        Fixed("hidden_act", "silu", "silu"),
        Fixed("attention_bias", value=False, default=False),
        Scaling(),
    )


MAX_COUNT = 1 << 31
"""More experts than a model may have, and few enough to divide them."""


def keep_all_tokens(section: Section) -> None:
    """Give experts the capacity for all tokens: published models drop none."""
    experts = section["experts"]
    count, per_token = experts.get("count"), experts.get("perToken")
    is_size = isinstance(count, int) and isinstance(per_token, int) and per_token > 0 and abs(count) < MAX_COUNT
    if is_size:  # the model rejects others
        experts["capacityFactor"] = count / per_token


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    rules=(*EMBEDDING, *ATTENTION, *NORMS_BEFORE, *MLP),
    fields=(*common_fields(), Fixed("mlp_bias", value=False, default=False)),
    derived=ROTARY_TABLES,
)
QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    rules=(*LLAMA.rules, *QUERY_KEY_NORMS),
    fields=(
        *common_fields(),
        Fixed("use_sliding_window", value=False, default=False),
        Option("attention.queryKeyNorm", "perHead"),
    ),
    derived=ROTARY_TABLES,
)
QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    rules=(*LLAMA.rules, *INPUT_BIASES),
    fields=(
        *common_fields(),
        Fixed("use_sliding_window", value=False, default=False),
        Option("attention.bias", ("query", "key", "value")),
    ),
    derived=ROTARY_TABLES,
)
MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    rules=LLAMA.rules,
    fields=(*common_fields(), MistralWindow(default=4096)),
    derived=ROTARY_TABLES,
)
OLMO3 = Family(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    rules=(*EMBEDDING, *ATTENTION, *NORMS_AFTER, *MLP, *PROJECTION_NORMS),
    fields=(
        *common_fields(epsilon=1e-5, theta=5e5),
        Option("attention.queryKeyNorm", "perProjection"),
        Option("norm.placement", "post"),
        LayerTypes((WINDOW, WINDOW, WINDOW, FULL), has_local_rope=True),
    ),
    derived=ROTARY_TABLES,
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    rules=(*QWEN3.rules, *QWEN_EXPERTS),
    fields=(
        *common_fields(),
        Fixed("use_sliding_window", value=False, default=False),
        Fixed("decoder_sparse_step", 1, 1),
        Fixed("mlp_only_layers", value=[], default=[]),
        Option("attention.queryKeyNorm", "perHead"),
        Field("num_experts", "experts.count", Unset()),
        Field("num_local_experts", "experts.count", Unset()),
        Field("num_experts_per_tok", "experts.perToken", 8),
        Field("moe_intermediate_size", "experts.mlpDim", 768),
        Field("norm_topk_prob", "experts.normalizeWeights", default=False),
        Field("router_aux_loss_coef", "experts.balance.lossWeight", 0.001),
    ),
    derived=ROTARY_TABLES,
    finish=keep_all_tokens,
)
MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    rules=(*EMBEDDING, *ATTENTION, *NORMS_BEFORE, *MIXTRAL_EXPERTS),
    fields=(
        *common_fields(epsilon=1e-5, theta=1e6),
        Window(),
        Field("num_local_experts", "experts.count", 8),
        Field("num_experts_per_tok", "experts.perToken", 2),
        Field("router_aux_loss_coef", "experts.balance.lossWeight", 0.001),
        Option("experts.normalizeWeights", value=True),
    ),
    derived=ROTARY_TABLES,
    finish=keep_all_tokens,
)
