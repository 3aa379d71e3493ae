"""The model section of a MaxText config: a preset by its name, or the dimensions and options of a decoder block."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from trainingjob_api.huggingface.config_fields import Section, get_path, set_path
from trainingjob_api.huggingface.families.deepseek import BIAS_RATE
from trainingjob_api.huggingface.layer_fields import count_runs
from trainingjob_api.huggingface.scaling_fields import scale_yarn
from trainingjob_api.presets.preset import Preset, drop_no_tokens
from trainingjob_api.presets.registry import DELTA_NET, GLOBAL_HEADS, PRESETS, SPARSE_INDEXER, UNSUPPORTED
from trainingjob_operator.cli.convert.source_rows import Values
from trainingjob_operator.cli.errors import CommandError

DEFAULTS: Values = {
    "decoder_block": "llama2", "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16,
    "base_mlp_dim": 7168, "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32000,
    "normalization_layer_epsilon": 1e-5, "mlp_activations": ["silu", "linear"], "rope_type": "default",
    "rope_max_timescale": 10000, "rope_factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "max_position_embeddings": 163840, "original_max_position_embeddings": 4096, "rope_interleave": True,
    "rope_truncate": True, "q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "num_experts": 1, "num_experts_per_tok": 1, "capacity_factor": -1.0, "shared_experts": 0,
    "routed_scaling_factor": 1.0, "routed_score_func": "", "load_balance_loss_weight": 0.0,
    "first_num_dense_layers": 0, "nope_layer_interval": -1, "interleave_moe_layer_step": 1,
}  # fmt: skip
"""Values of keys that a MaxText config omits, from its base.yml."""

KEYS: Mapping[str, str] = {
    "base_emb_dim": "embedDim",
    "base_num_query_heads": "numHeads",
    "base_num_kv_heads": "numKvHeads",
    "base_mlp_dim": "mlpDim",
    "base_num_decoder_layers": "numLayers",
    "head_dim": "headDim",
    "vocab_size": "vocabSize",
    "logits_via_embedding": "tieEmbeddings",
    "normalization_layer_epsilon": "norm.epsilon",
    "rope_max_timescale": "rope.theta",
    "partial_rotary_factor": "rope.fraction",
    "attention_sink": "attention.sinks",
    "attn_logits_soft_cap": "attention.softCap",
    "sliding_window_size": "attention.window",
    "chunk_attn_window_size": "attention.chunk",
    "final_logits_soft_cap": "logits.softCap",
    "mlp_bias": "mlp.bias",
    "mlp_activations_limit": "mlp.clip",
    "num_experts": "experts.count",
    "num_experts_per_tok": "experts.perToken",
    "base_moe_mlp_dim": "experts.mlpDim",
    "shared_experts": "experts.shared",
    "routed_scaling_factor": "experts.weightScale",
    "routed_score_func": "experts.scoring",
    "norm_topk_prob": "experts.normalizeWeights",
    "load_balance_loss_weight": "experts.balance.lossWeight",
}
"""Keys whose value is copied, and their fields in the model section."""
OFF = (None, "None", "", 0, -1, False)
"""Values by which a key of `KEYS` switches its option off."""

COMBINED = (
    "model_name", "decoder_block", "mlp_activations", "rope_type", "rope_use_scale", "rope_linear_scaling_factor",
    "local_rope_max_timescale", "rope_factor", "beta_fast", "beta_slow", "mscale", "max_position_embeddings",
    "original_max_position_embeddings", "rope_interleave", "rope_truncate", "rope_attention_scaling", "attention_type",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "capacity_factor",
    "n_routing_groups", "topk_routing_group", "routed_bias", "routed_bias_update_rate", "first_num_dense_layers",
    "nope_layer_interval", "interleave_moe_layer_step", "inhomogeneous_layer_cycle_interval", "temperature_tuning",
    "use_qk_norm", "attention_bias", "trainable_position_size", "use_post_attn_norm", "use_post_ffw_norm",
    "override_model_config",
)  # fmt: skip
"""Keys that are read together with others."""
WITH_PRESET = (
    "model_name", "decoder_block", "override_model_config", "capacity_factor", "n_routing_groups", "topk_routing_group",
)  # fmt: skip
"""Keys of `COMBINED` that also apply to a preset."""
GEMMA2_LAYERS = 2
"""A layer of MaxText's Gemma 2 is a layer with a window and one without."""

MISSING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "use_indexer": (bool, SPARSE_INDEXER),
    "gdn_num_value_heads": (bool, DELTA_NET),
    "global_head_dim": (bool, GLOBAL_HEADS),
    "share_kv_projections": (bool, GLOBAL_HEADS),
    "mhc_expansion_rate": (lambda rate: rate > 1, "hyper-connections"),
    "engram_layers": (bool, "memory of n-grams"),
    "moe_expert_input_dim": (lambda width: width > 0, UNSUPPORTED["qwen3-custom-30b-a3b"]),
    "hidden_size_per_layer_input": (bool, "embeddings of each layer"),
    "num_kv_shared_layers": (bool, "layers that share keys and values"),
    "first_num_hash_layers": (bool, "layers that choose experts by a hash of the token"),
    "compress_ratios": (bool, "compressed attention"),
    "use_untrainable_positional_embedding": (bool, "sinusoidal positions that are not trained"),
    "moba": (bool, "attention to a selection of blocks (MoBA)"),
    "attention_type": (lambda kind: kind in ("full", "block_diffusion", "compressed"), "attention that is not causal"),
}
"""By key, the values that no model section expresses, and what is missing for them."""
ACTIVATIONS = {"silu": "silu", "gelu": "geluTanh", "relu": "relu", "sigmoid": "quickGelu"}
ALL_PROJECTIONS = ["query", "key", "value", "out"]
FULL: Section = {"attention": "full"}
BOTH_NORMS: Section = {"norm": {"zeroCentered": True, "placement": "both"}, "mlp": {"activation": "geluTanh"}}

BLOCKS: Mapping[str, Section] = {
    "default": {},
    "llama2": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "deepseek": {"rope": {"interleaved": True}},
    "mixtral": {"experts": {"normalizeWeights": True}},
    "gemma": {"norm": {"zeroCentered": True}},
    "gemma2": {**BOTH_NORMS, "layers": {"pattern": [{}, FULL]}},
    "gemma3": {
        **BOTH_NORMS,
        "attention": {"queryKeyNorm": "perHead"},
        "layers": {"pattern": [{"count": 5, "rope": {"theta": 10000.0}}, FULL]},
    },
    "gpt3": {
        "norm": {"type": "layer", "zeroCentered": True},
        "attention": {"bias": ALL_PROJECTIONS},
        "mlp": {"bias": True},
    },
    "gpt_oss": {
        "attention": {"bias": ALL_PROJECTIONS},
        "mlp": {"linearOffset": 1.0},
        "layers": {"pattern": [{}, FULL]},
        "experts": {"normalizeWeights": True},
    },
    "llama4": {"rope": {"interleaved": True}, "experts": {"scoring": "sigmoid", "weighting": "input"}},
    "olmo3": {
        "norm": {"placement": "post"},
        "attention": {"queryKeyNorm": "perProjection"},
        "layers": {"pattern": [{"count": 3}, FULL]},
    },
}
"""What the code of each decoder block fixes."""
QUERY_KEY_NORMS = {"llama4": "l2", "olmo3": "perProjection"}
"""The norm of queries and keys of the blocks in which it is not that of each head."""


def read_model(values: Values) -> Section:
    """Return the model section of a config. Other keys replace values of a preset that the config names.

    Raises:
        CommandError: no model section expresses it, or its model has an unknown name.
    """
    name = values.get("model_name", "default")
    if name in UNSUPPORTED:
        raise CommandError(f"model_name: {name} cannot be converted. Missing: {UNSUPPORTED[name]}.")
    for key, (is_missing, feature) in MISSING.items():
        if key in values and is_missing(values[key]):
            raise CommandError(f"{key}: {values[key]} cannot be converted. Missing: {feature}.")
    if name in PRESETS:
        return _read_overrides(values, PRESETS[name])
    if name != "default" and "base_emb_dim" not in values:
        raise CommandError(f"model_name: {name} is unknown. Add the keys of its file in MaxText's configs/models.")
    return _read_block(dict(DEFAULTS) | dict(values))


def _read_overrides(values: Values, preset: Preset) -> Section:
    """Return the name of a preset, and the values that a config overrides."""
    section = _read_keys(values, {"preset": preset.name})
    if "numLayers" in section and preset.name.startswith("gemma2"):
        section["numLayers"] *= GEMMA2_LAYERS
    if "experts" in preset.model and values.get("capacity_factor", -1) > 0:
        set_path(section, "experts.capacityFactor", values["capacity_factor"])
    if values.get("n_routing_groups", -1) > 1:
        set_path(section, "experts.groups.count", values["n_routing_groups"])
        set_path(section, "experts.groups.perToken", values["topk_routing_group"])
    return section


def _read_keys(values: Values, section: Section) -> Section:
    """Copy the keys of `KEYS` into a model section."""
    for key, path in KEYS.items():
        value = values.get(key)
        if value not in OFF and not (path.startswith("experts.") and values.get("num_experts", 2) == 1):
            set_path(section, path, float(value) if path == "rope.theta" else value)
    return section


def _read_block(values: Values) -> Section:
    """Return the model section of a decoder block with its dimensions."""
    block = values["decoder_block"]
    if block not in BLOCKS:
        raise CommandError(f"decoder_block: {block} cannot be converted. It must be one of: {', '.join(BLOCKS)}.")
    section = copy.deepcopy(BLOCKS[block])
    if values["num_experts"] == 1:
        section.pop("experts", None)
    _read_keys(values, section)
    for set_fields in (_set_mlp, _set_norms, _set_positions, _set_latent_attention, _set_layers, _set_experts):
        set_fields(section, values, block)
    if block.startswith("gemma"):
        _set_gemma(section, values, block)
    return section


def _set_mlp(section: Section, values: Values, block: str) -> None:
    names = values["mlp_activations"]
    set_path(section, "mlp.activation", ACTIVATIONS.get(names[0], names[0]))
    set_path(section, "mlp.gated", len(names) > 1)


def _set_norms(section: Section, values: Values, block: str) -> None:
    """Set the norm of queries and keys, and the biases of projections."""
    if values.get("use_qk_norm"):
        set_path(section, "attention.queryKeyNorm", QUERY_KEY_NORMS.get(block, "perHead"))
    if values.get("attention_bias") and block != "gpt_oss":
        set_path(section, "attention.bias", ALL_PROJECTIONS[:3])
    if values.get("temperature_tuning"):
        set_path(section, "attention.temperatureTuning", {"length": 8192, "scale": 0.1})


def _set_positions(section: Section, values: Values, block: str) -> None:
    """Set learned positions, or the scaling of rotary ones."""
    if values.get("trainable_position_size", -1) > 0:
        section |= {"positions": "learned", "maxPositions": values["trainable_position_size"]}
        del section["rope"]
    elif values["rope_type"] == "llama3.1" and values.get("rope_use_scale", True):
        set_path(section, "rope.scaling", {"type": "llama3", "factor": 8.0, "originalLength": 8192})
    elif values["rope_type"] == "yarn":
        set_path(section, "rope.scaling", _read_yarn(values))
    elif values.get("rope_linear_scaling_factor", 1.0) != 1.0:
        factor = values["rope_linear_scaling_factor"]
        set_path(section, "rope.scaling", {"type": "linear", "factor": float(factor)})


def _read_yarn(values: Values) -> Section:
    options = {"betaFast": float(values["beta_fast"]), "betaSlow": float(values["beta_slow"])}
    if not values.get("rope_attention_scaling"):
        options["attentionFactor"] = 1.0
    return {
        "type": "yarn",
        "factor": float(values["rope_factor"]),
        "originalLength": values["original_max_position_embeddings"],
        "yarn": {**options, "truncate": bool(values["rope_truncate"])},
    }


def _set_latent_attention(section: Section, values: Values, block: str) -> None:
    """Set latent attention, whose scores have a factor for positions that are scaled by YaRN."""
    if values.get("attention_type") != "mla":
        return
    latent = {
        "queryRank": values["q_lora_rank"],
        "keyValueRank": values["kv_lora_rank"],
        "ropeDim": values["qk_rope_head_dim"],
        "noRopeDim": values["qk_nope_head_dim"],
        "valueDim": values["v_head_dim"],
    }
    section["latentAttention"] = {name: size for name, size in latent.items() if size}
    section.pop("headDim", None)
    section.pop("numKvHeads", None)
    is_longer = values["max_position_embeddings"] > values["original_max_position_embeddings"]
    if values["rope_type"] == "yarn" and is_longer:
        width = latent["ropeDim"] + latent["noRopeDim"]
        scale = width**-0.5 * scale_yarn(values["rope_factor"], values["mscale"]) ** 2
        set_path(section, "attention.scale", scale)


def _set_layers(section: Section, values: Values, block: str) -> None:
    """Set layers that differ."""
    if values["first_num_dense_layers"]:
        leading = [{"count": values["first_num_dense_layers"], "feedForward": "dense"}]
        set_path(section, "layers.leading", leading)
    if block == "olmo3" and values["rope_type"] == "yarn":  # layers with a window have positions without a scaling
        section["layers"]["pattern"][0]["rope"] = {"theta": section["rope"]["theta"]}
    if block == "llama4":
        pattern = count_runs(_list_llama4_layers(values))
        if pattern != [{}]:
            set_path(section, "layers.pattern", pattern)


def _list_llama4_layers(values: Values) -> list[Section]:
    """Return the kinds of layers that repeat: each of an interval without positions, each of a step with experts."""
    interval, step = max(values["nope_layer_interval"], 1), values["interleave_moe_layer_step"]
    has_intervals = values["nope_layer_interval"] > 0
    kinds = []
    for layer in range(math.lcm(interval, step)):
        kind: Section = {**FULL, "positions": "none"} if has_intervals and (layer + 1) % interval == 0 else {}
        kinds.append(kind | ({} if (layer + 1) % step == 0 else {"feedForward": "dense"}))
    return kinds


def _set_experts(section: Section, values: Values, block: str) -> None:
    experts = section.get("experts")
    if not experts:
        return
    if experts.get("mlpDim") == section["mlpDim"]:
        del experts["mlpDim"]
    experts.setdefault("balance", {}).setdefault("lossWeight", values["load_balance_loss_weight"])
    if values.get("n_routing_groups", -1) > 1:
        score = "sumOfTwo" if values.get("routed_bias") else "best"
        groups = {"count": values["n_routing_groups"], "perToken": values["topk_routing_group"], "score": score}
        experts["groups"] = groups
    if get_path(section, "experts.scoring") == "sigmoid" and block == "deepseek":
        experts["normalizeWeights"] = True
    if values.get("routed_bias"):
        if block == "gpt_oss":
            experts["routerBias"] = True
        else:
            experts["balance"]["biasRate"] = values.get("routed_bias_update_rate") or BIAS_RATE
    factor = values["capacity_factor"]
    section["experts"] = experts | {"capacityFactor": factor} if factor > 0 else drop_no_tokens(experts)


def _set_gemma(section: Section, values: Values, block: str) -> None:
    """Set what the blocks of Gemma derive from their dimensions."""
    width, heads, head_dim = values["base_emb_dim"], values["base_num_query_heads"], values["head_dim"]
    section["embeddingScale"] = math.sqrt(width)
    if block == "gemma":
        return
    query_width = width // heads if head_dim == 128 else head_dim  # MaxText decides by the name of the model
    set_path(section, "attention.scale", query_width**-0.5)
    if block == "gemma2":
        section["numLayers"] *= GEMMA2_LAYERS
    elif values.get("local_rope_max_timescale", -1) > 0:
        section["layers"]["pattern"][0]["rope"] = {"theta": float(values["local_rope_max_timescale"])}
