"""gpt-oss: sinks, biases everywhere, alternating windows, and experts with a clipped MLP."""

from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.config_fields import (
    Config,
    Field,
    Fixed,
    Option,
    Section,
    get_path,
    set_path,
)
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
from trainingjob_api.huggingface.rope_fields import DEFAULT, FULL, ORIGINAL, PARAMETERS, SCALING, THETA, WINDOW
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import Scaling, read_scaling

PUBLISHED_SCALING = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, ORIGINAL: 4096,
}  # fmt: skip
"""Scaling of a `config.json` without one: that of the published models."""


@dataclass(frozen=True)
class NewScaling:
    """The scaling that only the newer form can leave out: without it, `transformers` takes the published one."""

    key: str = PARAMETERS

    def read(self, config: Config, section: Section) -> None:
        """Set the published scaling, unless the file has positions in one of the forms."""
        if not config.get(PARAMETERS) and not config.get(SCALING):
            set_path(section, "rope.scaling", read_scaling(PUBLISHED_SCALING, SCALING, None))

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the newer form of a model without scaling."""
        if get_path(section, "rope.scaling") is None:
            config[PARAMETERS] = {"rope_type": DEFAULT, THETA: config[THETA]}


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
        NewScaling(),
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
