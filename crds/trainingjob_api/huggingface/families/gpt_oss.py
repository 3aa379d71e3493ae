"""gpt-oss: sinks, biases everywhere, alternating windows, and experts with a clipped MLP."""

from trainingjob_api.huggingface.config_fields import Field, Fixed, Option
from trainingjob_api.huggingface.families.llama_like import (
    ATTENTION,
    DIMS,
    EMBEDDING,
    INPUT_BIASES,
    LAYER,
    NORMS_BEFORE,
    OUTPUT_BIAS,
    keep_all_tokens,
)
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layer_fields import LayerTypes
from trainingjob_api.huggingface.rope_fields import FULL, WINDOW
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import Scaling

EXPERTS = LAYER + "mlp.experts."

GPT_OSS = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    rules=(
        *EMBEDDING,
        *ATTENTION,
        *INPUT_BIASES,
        *OUTPUT_BIAS,
        *NORMS_BEFORE,
        Rule(LAYER + "self_attn.sinks", "attention.sinks", "h -> h"),
        Rule(LAYER + "mlp.router.weight", "mlp.router", "e d -> d e"),
        Rule(LAYER + "mlp.router.bias", "mlp.router_bias", "e -> e"),
        Rule(EXPERTS + "gate_up_proj", "mlp.gate", "e d (f 0/2) -> e d f"),
        Rule(EXPERTS + "gate_up_proj", "mlp.up", "e d (f 1/2) -> e d f"),
        Rule(EXPERTS + "gate_up_proj_bias", "mlp.gate_bias", "e (f 0/2) -> e f"),
        Rule(EXPERTS + "gate_up_proj_bias", "mlp.up_bias", "e (f 1/2) -> e f"),
        Rule(EXPERTS + "down_proj", "mlp.down", "e f d -> e f d"),
        Rule(EXPERTS + "down_proj_bias", "mlp.down_bias", "e d -> e d"),
    ),
    fields=(
        *DIMS,
        Field("rms_norm_eps", "norm.epsilon", 1e-5),
        Field("tie_word_embeddings", "tieEmbeddings", default=False),
        Field("rope_theta", "rope.theta", 150000.0),
        Scaling(),
        Field("initializer_range", "init.std", 0.02),
        Fixed("hidden_act", "silu", "silu"),
        Fixed("attention_bias", value=True, default=True),
        Fixed("swiglu_alpha", 1.702, 1.702),
        Field("swiglu_limit", "mlp.clip", 7.0),
        Field("num_local_experts", "experts.count"),
        Field("num_experts_per_tok", "experts.perToken", 4),
        Field("router_aux_loss_coef", "experts.balance.lossWeight", 0.9),
        Option("attention.bias", ("query", "key", "value", "out")),
        Option("attention.sinks", value=True),
        Option("mlp.activation", "quickGelu"),
        Option("mlp.bias", value=True),
        Option("mlp.linearOffset", 1.0),
        Option("experts.routerBias", value=True),
        Option("experts.normalizeWeights", value=True),
        LayerTypes((WINDOW, FULL)),
    ),
    finish=keep_all_tokens,
)
