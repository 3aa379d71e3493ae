"""Gemma 1 to 3: scaled embeddings, zero-centered norms, and from Gemma 2 on windows and norms on both sides."""

import math
from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigField, Field, Fixed, Option, Section, Unset
from trainingjob_api.huggingface.families.llama_like import (
    ATTENTION,
    DIMS,
    EMBEDDING,
    LAYER,
    MLP,
    NORMS_AFTER,
    NORMS_BEFORE,
    QUERY_KEY_NORMS,
)
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layer_fields import LayerTypes
from trainingjob_api.huggingface.rope_fields import FULL, WINDOW
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import Scaling

NORMS_AROUND = (
    NORMS_BEFORE[0],
    *NORMS_AFTER,
    Rule(LAYER + "pre_feedforward_layernorm.weight", "mlp_norm.scale", "d -> d"),
)
ACTIVATIONS = {"gelu_pytorch_tanh": "geluTanh"}


@dataclass(frozen=True)
class EmbeddingScale:
    """Factor on embeddings: the square root of the width, which `config.json` does not have."""

    key: str = "hidden_size"

    def read(self, config: Config, section: Section) -> None:
        """Set the factor."""
        section["embeddingScale"] = math.sqrt(section["embedDim"])

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write nothing."""


@dataclass(frozen=True)
class QueryScale:
    """Factor on the products of queries and keys, which `config.json` has as a width."""

    key: str = "query_pre_attn_scalar"
    default: float = 256

    def read(self, config: Config, section: Section) -> None:
        """Set the factor."""
        section.setdefault("attention", {})["scale"] = float(config.get(self.key, self.default)) ** -0.5

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the width."""
        scale = section["attention"]["scale"] or section["headDim"] ** -0.5
        width = round(scale**-2, 6)
        config[self.key] = int(width) if width.is_integer() else width


def gemma_fields(*, activation_key: str) -> tuple[ConfigField, ...]:
    """Return the fields of all Gemma models."""
    return (
        *DIMS,
        EmbeddingScale(),
        Field("rms_norm_eps", "norm.epsilon", 1e-6),
        Field("tie_word_embeddings", "tieEmbeddings", default=True),
        Field("initializer_range", "init.std", 0.02),
        Field(activation_key, "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS),
        Fixed("attention_bias", value=False, default=False),
        Fixed("use_bidirectional_attention", value=False, default=False),
        Option("norm.zeroCentered", value=True),
    )


GEMMA = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    rules=(*EMBEDDING, *ATTENTION, *NORMS_BEFORE, *MLP),
    fields=(
        Field("hidden_act", "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS | {"gelu": "geluTanh"}),
        *gemma_fields(activation_key="hidden_activation"),  # older versions read it, newer ones `hidden_act`
        Field("rope_theta", "rope.theta", 10000.0),
        Fixed("rope_scaling", None),
    ),
)
GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    rules=(*EMBEDDING, *ATTENTION, *NORMS_AROUND, *MLP),
    fields=(
        *gemma_fields(activation_key="hidden_activation"),
        Field("rope_theta", "rope.theta", 10000.0),
        Fixed("rope_scaling", None),
        Option("norm.placement", "both"),
        QueryScale(),
        Field("attn_logit_softcapping", "attention.softCap", Unset(), absent=50.0),
        Field("final_logit_softcapping", "logits.softCap", Unset(), absent=30.0),
        LayerTypes((WINDOW, FULL)),
    ),
)
GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    rules=(*GEMMA2.rules, *QUERY_KEY_NORMS),
    fields=(
        *gemma_fields(activation_key="hidden_activation"),
        Field("rope_theta", "rope.theta", 1e6),
        Scaling(),
        Option("norm.placement", "both"),
        Option("attention.queryKeyNorm", "perHead"),
        QueryScale(),
        Fixed("attn_logit_softcapping", None),  # `transformers` does not use it
        Field("final_logit_softcapping", "logits.softCap", Unset()),
        LayerTypes((*[WINDOW] * 5, FULL), local_theta=10000.0, has_local_rope=True, cycle_key="sliding_window_pattern"),
    ),
)
