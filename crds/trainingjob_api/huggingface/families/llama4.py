"""The text part of Llama 4: chunks, layers without positions, and experts whose weights scale their inputs."""

import json
from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.config_fields import (
    Config,
    ConfigError,
    Field,
    Fixed,
    Option,
    Section,
    Unset,
    get_path,
)
from trainingjob_api.huggingface.families.llama_like import ATTENTION, EMBEDDING, LAYER, NORMS_BEFORE, keep_all_tokens
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layer_fields import count_runs, expand_runs, find_cycle, repeat
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.huggingface.scaling_fields import Scaling

FEED_FORWARD = LAYER + "feed_forward."
NO_ROPE_INTERVAL = 4


@dataclass(frozen=True)
class Layers:
    """Layers without positions, which attend to all tokens, and layers with experts."""

    key: str = "no_rope_layers"

    def read(self, config: Config, section: Section) -> None:
        """Set the pattern.

        Raises:
            ConfigError: the layers are not of this family's kinds.
        """
        count = section["numLayers"]
        interval = config.get("no_rope_layer_interval") or NO_ROPE_INTERVAL
        ropes = config.get("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(count)]
        step = config.get("interleave_moe_layer_step") or 1
        routed = config.get("moe_layers") or list(range(step - 1, count, step))
        kinds = []
        for layer, rope in enumerate(ropes):
            kind: Section = {} if rope else {"attention": "full", "positions": "none"}
            kinds.append(kind | ({} if layer in routed else {"feedForward": "dense"}))
        types = config.get("layer_types") or [_type_of(kind) for kind in kinds]
        if types != [_type_of(kind) for kind in kinds]:
            raise ConfigError("layer_types", f"is {json.dumps(types)}, and must be full where layers have no rope.")
        if any(kinds):
            section.setdefault("layers", {})["pattern"] = count_runs(find_cycle(kinds))

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the kinds of each layer."""
        kinds = repeat(expand_runs(get_path(section, "layers.pattern") or [{}]), section["numLayers"])
        config["no_rope_layers"] = [int(kind.get("positions") != "none") for kind in kinds]
        config["layer_types"] = [_type_of(kind) for kind in kinds]
        config["moe_layers"] = [layer for layer, kind in enumerate(kinds) if kind.get("feedForward") != "dense"]
        config["interleave_moe_layer_step"] = config["moe_layers"][0] + 1 if config["moe_layers"] else 1


def _type_of(kind: Section) -> str:
    return "full_attention" if kind.get("positions") == "none" else "chunked_attention"


@dataclass(frozen=True)
class Temperature:
    """Growth of queries with the position, in layers without positions."""

    def read(self, config: Config, section: Section) -> None:
        """Set the growth."""
        if config.get("attn_temperature_tuning", True):
            tuning = {"length": config.get("floor_scale", 8192), "scale": config.get("attn_scale", 0.1)}
            section.setdefault("attention", {})["temperatureTuning"] = tuning

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the growth."""
        tuning = get_path(section, "attention.temperatureTuning")
        config["attn_temperature_tuning"] = tuning is not None
        if tuning:
            config["floor_scale"], config["attn_scale"] = tuning["length"], tuning["scale"]


@dataclass(frozen=True)
class QueryKeyNorm:
    """Norm of rotated queries and keys."""

    def read(self, config: Config, section: Section) -> None:
        """Set the norm."""
        if config.get("use_qk_norm", True):
            section.setdefault("attention", {})["queryKeyNorm"] = "l2"

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write whether there is one."""
        config["use_qk_norm"] = get_path(section, "attention.queryKeyNorm") == "l2"


LLAMA4 = Family(
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    rules=(
        *EMBEDDING,
        *ATTENTION,
        *NORMS_BEFORE,
        Rule(FEED_FORWARD + "gate_proj.weight", "mlp.gate", "f d -> d f"),
        Rule(FEED_FORWARD + "up_proj.weight", "mlp.up", "f d -> d f"),
        Rule(FEED_FORWARD + "down_proj.weight", "mlp.down", "d f -> f d"),
        Rule(FEED_FORWARD + "router.weight", "mlp.router", "e d -> d e"),
        Rule(FEED_FORWARD + "experts.gate_up_proj", "mlp.gate", "e d (0/2 f) -> e d f"),
        Rule(FEED_FORWARD + "experts.gate_up_proj", "mlp.up", "e d (1/2 f) -> e d f"),
        Rule(FEED_FORWARD + "experts.down_proj", "mlp.down", "e f d -> e f d"),
        Rule(FEED_FORWARD + "shared_expert.gate_proj.weight", "mlp.shared.gate", "f d -> d f"),
        Rule(FEED_FORWARD + "shared_expert.up_proj.weight", "mlp.shared.up", "f d -> d f"),
        Rule(FEED_FORWARD + "shared_expert.down_proj.weight", "mlp.shared.down", "d f -> f d"),
    ),
    fields=(
        Field("vocab_size", "vocabSize"),
        Field("hidden_size", "embedDim"),
        Field("intermediate_size_mlp", "mlpDim"),
        Field("intermediate_size", "experts.mlpDim"),
        Field("num_hidden_layers", "numLayers"),
        Field("num_attention_heads", "numHeads"),
        Field("num_key_value_heads", "numKvHeads", Unset()),
        Field("head_dim", "headDim", Unset()),
        Field("rms_norm_eps", "norm.epsilon", 1e-5),
        Field("tie_word_embeddings", "tieEmbeddings", default=False),
        Field("rope_theta", "rope.theta", 500000.0),
        Scaling(),
        Option("rope.interleaved", value=True),
        Field("initializer_range", "init.std", 0.02),
        Fixed("hidden_act", "silu", "silu"),
        Fixed("attention_bias", value=False, default=False),
        QueryKeyNorm(),
        Field("attention_chunk_size", "attention.chunk", 8192),
        Temperature(),
        Layers(),
        Field("num_local_experts", "experts.count", 16),
        Field("num_experts_per_tok", "experts.perToken", 1),
        Field("router_aux_loss_coef", "experts.balance.lossWeight", 0.001),
        Option("experts.scoring", "sigmoid"),
        Option("experts.weighting", "input"),
        Option("experts.shared", 1),
    ),
    finish=keep_all_tokens,
)
