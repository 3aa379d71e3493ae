"""DeepSeek V2 and V3, and Kimi K2: latent attention, leading dense layers, groups of experts and shared ones."""

from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.config_fields import (
    Config,
    ConfigField,
    Field,
    Fixed,
    Option,
    Repeated,
    Section,
    Unset,
)
from trainingjob_api.huggingface.families.llama_like import (
    EMBEDDING,
    LAYER,
    MLP,
    NORMS_BEFORE,
    QWEN_EXPERTS,
    ROTARY_TABLES,
    keep_all_tokens,
)
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layer_fields import LeadingDense
from trainingjob_api.huggingface.layout import Sizes
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import LatentScale, Scaling
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.network import Network

BIAS_RATE = 0.001
"""Step of the balancing bias in the training of DeepSeek-V3 (arXiv 2412.19437), which no `config.json` has."""

METHOD, PLAIN, GROUPED = "topk_method", "greedy", "group_limited_greedy"
"""Field of DeepSeek V2 that says whether experts have groups, and its values."""

LATENT_ATTENTION = (
    Rule(LAYER + "self_attn.q_a_proj.weight", "attention.query_down", "r d -> d r"),
    Rule(LAYER + "self_attn.q_a_layernorm.weight", "attention.query_norm.scale", "r -> r"),
    Rule(LAYER + "self_attn.q_b_proj.weight", "attention.query_up", "(h k) r -> r h k"),
    Rule(LAYER + "self_attn.q_proj.weight", "attention.query", "(h k) d -> d h k"),
    Rule(LAYER + "self_attn.kv_a_proj_with_mqa.weight", "attention.key_value_down", "r+p d -> d r"),
    Rule(LAYER + "self_attn.kv_a_proj_with_mqa.weight", "attention.rope_key", "r+p d -> d p"),
    Rule(LAYER + "self_attn.kv_a_layernorm.weight", "attention.key_value_norm.scale", "r -> r"),
    Rule(LAYER + "self_attn.kv_b_proj.weight", "attention.key", "(h k+v) r -> r h k"),
    Rule(LAYER + "self_attn.kv_b_proj.weight", "attention.value", "(h k+v) r -> r h v"),
    Rule(LAYER + "self_attn.o_proj.weight", "attention.out", "d (h v) -> h v d"),
)
SHARED_EXPERTS = (
    Rule(LAYER + "mlp.shared_experts.gate_proj.weight", "mlp.shared.gate", "f d -> d f"),
    Rule(LAYER + "mlp.shared_experts.up_proj.weight", "mlp.shared.up", "f d -> d f"),
    Rule(LAYER + "mlp.shared_experts.down_proj.weight", "mlp.shared.down", "d f -> f d"),
)
PREDICTION = (
    Rule(LAYER + "enorm.weight", "prediction.token_norm.scale", "d -> d"),
    Rule(LAYER + "hnorm.weight", "prediction.hidden_norm.scale", "d -> d"),
    Rule(LAYER + "eh_proj.weight", "prediction.token_projection", "o t+u -> t o"),
    Rule(LAYER + "eh_proj.weight", "prediction.hidden_projection", "o t+u -> u o"),
    Rule(LAYER + "shared_head.norm.weight", "prediction.norm.scale", "d -> d"),
)
"""Modules of multi-token prediction, as layers after the last one."""
SHARED_COPIES = (".embed_tokens.weight", ".shared_head.head.weight")
"""Endings of the copies of embedding and output projection that files hold for each module."""
BALANCE = (Rule(LAYER + "mlp.gate.e_score_correction_bias", "mlp.balance_bias", "e -> e"),)


@dataclass(frozen=True)
class Groups:
    """Groups of experts. One group is none."""

    score: str
    count: int = 1
    """Number of groups in a `config.json` without the key."""
    per_token: int | None = None
    """Groups of a token in a `config.json` without the key. None: it must have the key."""
    key: str = "n_group"

    def read(self, config: Config, section: Section) -> None:
        """Set the groups."""
        count = config.get("n_group", self.count) or 1
        if count > 1:
            per_token = config["topk_group"] if self.per_token is None else config.get("topk_group", self.per_token)
            section["experts"]["groups"] = {"count": count, "perToken": per_token, "score": self.score}

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the groups."""
        groups = (section["experts"] or {}).get("groups") or {"count": 1, "perToken": 1}
        config["n_group"], config["topk_group"] = groups["count"], groups["perToken"]


@dataclass(frozen=True)
class BestGroups(Groups):
    """Groups of DeepSeek V2, which has them with one method alone."""

    def read(self, config: Config, section: Section) -> None:
        """Set the groups, unless the method has none.

        Raises:
            ConfigError: the method is unknown.
        """
        if config.get(METHOD, PLAIN) == PLAIN:
            return
        Fixed(METHOD, GROUPED).read(config, section)
        super().read(config, section)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the groups and the method."""
        super().write(section, config)
        config[METHOD] = GROUPED if config["n_group"] > 1 else PLAIN


@dataclass(frozen=True)
class PredictionModules:
    """Number of modules of multi-token prediction. A job has those that its model sets, whatever files hold."""

    def read(self, config: Config, section: Section) -> None:
        """Set nothing: the modules matter for training alone."""

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the number, 0 if the files hold none: that of the initial weights may be another one."""
        prediction = section["multiTokenPrediction"]
        config["num_nextn_predict_layers"] = prediction["depth"] if prediction else 0


def _latent_sizes(network: Network) -> Sizes:
    """Return the widths of the tensors that files join: ranks, positions, and the two parts of a head."""
    (latent,) = {block.attention.latent for block in network.blocks if isinstance(block.attention, LatentAttention)}
    ranks = {"r": latent.key_value_rank, "p": latent.rope_dim, "k": latent.no_rope_dim, "v": latent.value_dim}
    return ranks | {"t": network.width, "u": network.width}


def deepseek_fields(*, theta: float = 10000.0, weight_scale: float, shared: int) -> tuple[ConfigField, ...]:
    """Return the fields of all DeepSeek models, with the defaults of one in `transformers`."""
    return (
        Field("vocab_size", "vocabSize"),
        Field("hidden_size", "embedDim"),
        Field("intermediate_size", "mlpDim"),
        Field("num_hidden_layers", "numLayers"),
        Field("num_attention_heads", "numHeads"),
        Repeated("num_key_value_heads", "numHeads"),
        Field("q_lora_rank", "latentAttention.queryRank", Unset()),
        Field("kv_lora_rank", "latentAttention.keyValueRank"),
        Field("qk_rope_head_dim", "latentAttention.ropeDim"),
        Field("qk_nope_head_dim", "latentAttention.noRopeDim"),
        Field("v_head_dim", "latentAttention.valueDim"),
        Field("rms_norm_eps", "norm.epsilon", 1e-6),
        Field("tie_word_embeddings", "tieEmbeddings", default=False),
        Field("rope_theta", "rope.theta", theta),
        Scaling(),
        LatentScale(),
        Option("rope.interleaved", value=True),
        Field("initializer_range", "init.std", 0.02),
        Fixed("hidden_act", "silu", "silu"),
        Fixed("attention_bias", value=False, default=False),
        Fixed("moe_layer_freq", 1, 1),
        LeadingDense(),
        Field("n_routed_experts", "experts.count"),
        Field("num_experts_per_tok", "experts.perToken"),
        Field("moe_intermediate_size", "experts.mlpDim"),
        Field("n_shared_experts", "experts.shared", Unset(), absent=shared),
        Field("routed_scaling_factor", "experts.weightScale", weight_scale),
    )


RULES = (*EMBEDDING, *LATENT_ATTENTION, *NORMS_BEFORE, *MLP, *QWEN_EXPERTS, *SHARED_EXPERTS)

DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    rules=RULES,
    fields=(
        *deepseek_fields(weight_scale=1.0, shared=2),
        Fixed("mlp_bias", value=False, default=False),
        Fixed("norm_topk_prob", value=False, default=False),  # `transformers` does not use it
        Option("experts.normalizeWeights", value=False),
        BestGroups("best"),
        Option("experts.scoring", "softmax"),
    ),
    derived=ROTARY_TABLES,
    sizes=_latent_sizes,
    finish=keep_all_tokens,
)
DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    rules=(*RULES, *BALANCE, *PREDICTION),
    fields=(
        *deepseek_fields(weight_scale=2.5, shared=1),
        Field("norm_topk_prob", "experts.normalizeWeights", default=True),
        Groups("sumOfTwo", count=8, per_token=4),
        Option("experts.scoring", "sigmoid"),
        Option("experts.balance.biasRate", BIAS_RATE),
        Fixed("rope_interleave", value=True, default=True),
        PredictionModules(),
    ),
    derived=(*ROTARY_TABLES, *SHARED_COPIES),
    sizes=_latent_sizes,
    finish=keep_all_tokens,
)
