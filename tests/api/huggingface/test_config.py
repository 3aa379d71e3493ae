"""`config.json` of published models: the model section of each, the way back, and what cannot be expressed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainingjob_api.huggingface.config_fields import (
    ConfigError,
    Field,
    Repeated,
    Unset,
    get_path,
    read_fields,
    write_fields,
)
from trainingjob_api.huggingface.family import compare_functions
from trainingjob_api.huggingface.registry import FAMILIES, find_nearest, read_config, write_config
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Balance, Experts
from trainingjob_api.spec.model import Init, Model

FIXTURES = Path(__file__).parents[2] / "fixtures/huggingface"
NAMES = sorted(folder.name for folder in FIXTURES.iterdir())

LLAMA_2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}


def fixture(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FIXTURES / name / "config.json").read_text())
    return content


def test_a_published_config_is_a_model_of_its_published_size() -> None:
    model = Model.model_validate(read_config(LLAMA_2_7B))

    assert resolve(model).num_parameters == 6_738_415_616
    assert model.norm.epsilon == 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_written_as_the_config_that_it_was_read_from(name: str) -> None:
    config = fixture(name)
    model = Model.model_validate(read_config(config))

    found = write_config(model)

    assert found
    family, written = found
    assert family.model_type == config["model_type"]
    assert written["architectures"] == config["architectures"]
    assert Model.model_validate(read_config(written)) == model
    both = [key for key in written if config.get(key) is not None]
    assert {key: written[key] for key in both} == {key: config[key] for key in both}


@pytest.mark.parametrize("changes", [{"capacity_factor": 1.5}, {"dispatch": "dropless"}], ids=str)
def test_options_of_training_do_not_change_the_family(changes: dict[str, Any]) -> None:
    experts = Experts(count=4, per_token=2, normalize_weights=True, balance=Balance(loss_weight=0), **changes)
    model = Model.model_validate(read_config(fixture("llama"))).model_copy(update={"experts": experts})

    found = write_config(model)

    assert found
    assert found[0] is FAMILIES["mixtral"]


def test_a_model_that_no_family_computes_is_not_written() -> None:
    experts = Experts(count=4, per_token=2, normalize_weights=True, weight_scale=3)
    model = Model.model_validate(read_config(fixture("llama"))).model_copy(update={"experts": experts})

    assert write_config(model) is None


def test_older_and_newer_forms_of_rotary_positions_are_the_same() -> None:
    old = LLAMA_2_7B | {"rope_theta": 5e5}
    new = LLAMA_2_7B | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    plain = LLAMA_2_7B | {"rope_theta": 5e5, "rope_scaling": {"type": "default"}}
    without_theta = LLAMA_2_7B | {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}

    sections = [read_config(config) for config in (old, new, plain, without_theta)]

    assert sections == [sections[0]] * 4
    assert sections[0]["rope"] == {"theta": 5e5}


def test_differences_are_fields_that_change_the_computation() -> None:
    model = Model.model_validate(read_config(fixture("mixtral")))
    experts = model.experts
    assert experts
    other = model.model_copy(
        update={
            "preset": "mixtral-8x7b",
            "init": Init(std=1),
            "norm": model.norm.model_copy(update={"epsilon": 0.1}),
            "experts": experts.model_copy(update={"capacity_factor": 1.0, "per_token": 1}),
            "num_kv_heads": None,
        }
    )

    assert compare_functions(model, other) == {
        "experts.perToken": (2, 1),
        "norm.epsilon": (1e-5, 0.1),
        "numKvHeads": (2, 4),
    }
    assert compare_functions(model.model_copy(update={"experts": None}), model)["experts.count"] == (None, 4)


def test_a_model_without_the_bias_of_the_files_is_not_written() -> None:
    model = Model.model_validate(read_config(fixture("deepseek_v3")))
    assert model.experts
    plain = model.model_copy(update={"experts": model.experts.model_copy(update={"balance": Balance()})})

    assert write_config(plain) is None
    family, differences = find_nearest(plain)
    assert (family.model_type, differences) == ("deepseek_v3", {"experts.balance.biasRate": (None, 1.0)})


def test_a_head_that_is_too_narrow_by_default_is_no_published_model() -> None:
    model = Model(vocab_size=8, embed_dim=2, mlp_dim=2, num_layers=1, num_heads=2)

    assert write_config(model) is None


ERRORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown architecture": (
        {"model_type": "mamba"},
        "model_type",
        f'config.json: `model_type` is "mamba", and must be one of: {", ".join(sorted(FAMILIES))}.',
    ),
    "no architecture": ({"model_type": None}, "model_type", "config.json: `model_type` is null, and must be one of"),
    "no width": ({"hidden_size": None}, "hidden_size", "config.json: `hidden_size` is missing."),
    "another activation": (
        {"hidden_act": "gelu"},
        "hidden_act",
        'config.json: `hidden_act` is "gelu", and only "silu" is supported.',
    ),
}


@pytest.mark.parametrize(("changes", "key", "message"), ERRORS.values(), ids=ERRORS)
def test_an_unsupported_config_is_an_error_that_names_the_field(
    changes: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(LLAMA_2_7B | changes)

    assert caught.value.key == key
    assert str(caught.value).startswith(message)


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown kind of scaling": (
        "llama_rope_scaling",
        {"rope_parameters": None, "rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        'config.json: `rope_scaling.rope_type` is "longrope", and must be one of: ',
    ),
    "a scaling without factor": (
        "llama_rope_scaling",
        {"rope_parameters": None, "rope_scaling": {"rope_type": "linear"}},
        "config.json: `rope_scaling.factor` is missing.",
    ),
    "an unknown kind of layer": (
        "gemma2",
        {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        'config.json: `layer_types` holds "linear_attention", and must be of: full_attention, sliding_attention.',
    ),
    "a kind of layer without its window": (
        "gemma2",
        {"sliding_window": None},
        "config.json: `sliding_window` is missing.",
    ),
    "positions of full layers that are a text": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": "default"}},
        'config.json: `rope_parameters.full_attention` is "default", and must be an object.',
    ),
    "positions of layers with a window that are null": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": None}},
        "config.json: `rope_parameters.sliding_attention` is null, and must be an object.",
    ),
    "chunks in layers without positions": (
        "llama4_text",
        {"layer_types": ["chunked_attention"] * 4},
        "config.json: `layer_types` is [",
    ),
}


@pytest.mark.parametrize(("name", "changes", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_an_unsupported_option_of_a_family_is_an_error(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(fixture(name) | changes)

    assert str(caught.value).startswith(message)


KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a list for a width": ("gemma2", {"hidden_size": [16]}, "hidden_size"),
    "no scale of queries": ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    "a list for a function": ("gemma2", {"hidden_activation": ["gelu"]}, "hidden_activation"),
    "a number for the kinds of layers": ("gemma2", {"layer_types": 3}, "layer_types"),
    "groups without those of a token": ("deepseek_v2", {"n_group": 2, "topk_group": "absent"}, "n_group"),
    "a number for the layers without positions": ("llama4_text", {"no_rope_layers": 3}, "no_rope_layers"),
}


@pytest.mark.parametrize(("name", "changes", "key"), KINDS.values(), ids=KINDS)
def test_a_value_of_another_kind_is_an_error_that_names_the_field(name: str, changes: dict[str, Any], key: str) -> None:
    config = {field: value for field, value in (fixture(name) | changes).items() if value != "absent"}

    with pytest.raises(ConfigError, match="has a value of another kind") as caught:
        read_config(config)

    assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("mixtral", {"num_experts_per_tok": 0}, ("experts", "perToken")),
        ("mixtral", {"num_local_experts": [4]}, ("experts", "count")),
        ("mixtral", {"num_local_experts": 10**400}, ("experts", "count")),
        ("gpt2", {"n_embd": {}, "n_inner": None}, ("embedDim",)),
    ],
)
def test_a_size_of_another_kind_is_no_model(name: str, changes: dict[str, Any], place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(read_config(fixture(name) | changes))

    assert place in [error["loc"] for error in caught.value.errors()]


OPTIONS: dict[str, tuple[str, dict[str, Any], str, object]] = {
    "a window in all layers": ("gemma2", {"layer_types": ["sliding_attention"] * 3}, "layers", None),
    "no leading layers": ("deepseek_v2", {"first_k_dense_replace": 0}, "layers", None),
    "no norm of queries and keys": ("llama4_text", {"use_qk_norm": False}, "attention.queryKeyNorm", None),
    "no growth of queries": ("llama4_text", {"attn_temperature_tuning": False}, "attention.temperatureTuning", None),
}


@pytest.mark.parametrize(("name", "changes", "path", "want"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_of_a_family_is_read_and_written(name: str, changes: dict[str, Any], path: str, want: object) -> None:
    config = fixture(name) | changes
    section = read_config(config)

    assert get_path(section, path) == want
    model = Model.model_validate(section)
    found = FAMILIES[config["model_type"]].to_config(model)
    assert found
    assert resolve(Model.model_validate(read_config(found))) == resolve(model)


ACTIVATION = Field("act", "mlp.activation", values={"silu": "silu", "gelu_pytorch_tanh": "geluTanh"})


def test_an_unset_value_is_written_as_null() -> None:
    field = Field("q_lora_rank", "latentAttention.queryRank", Unset())

    assert write_fields([field], {}) == {"q_lora_rank": None}
    assert read_fields([field], {"q_lora_rank": None}) == {}


def test_a_field_that_repeats_another_one_is_checked() -> None:
    fields = [Field("heads", "numHeads"), Repeated("kv_heads", "numHeads")]

    assert read_fields(fields, {"heads": 4}) == read_fields(fields, {"heads": 4, "kv_heads": 4}) == {"numHeads": 4}
    assert write_fields(fields, {"numHeads": 4}) == {"heads": 4, "kv_heads": 4}
    with pytest.raises(ConfigError, match="`kv_heads` is 2, and only 4 is supported"):
        read_fields(fields, {"heads": 4, "kv_heads": 2})


def test_layers_with_other_positions_have_the_newer_form_too() -> None:
    found = write_config(Model.model_validate(read_config(fixture("gemma3_text"))))

    assert found
    assert found[1]["rope_parameters"] == fixture("gemma3_text")["rope_parameters"]


def test_values_are_translated_in_both_directions() -> None:
    assert read_fields([ACTIVATION], {"act": "gelu_pytorch_tanh"}) == {"mlp": {"activation": "geluTanh"}}
    assert write_fields([ACTIVATION], {"mlp": {"activation": "geluTanh"}}) == {"act": "gelu_pytorch_tanh"}
    assert write_fields([ACTIVATION], {"mlp": {"activation": "relu"}}) == {}


def test_a_value_without_translation_is_an_error() -> None:
    with pytest.raises(ConfigError, match='`act` is "relu", and must be one of: silu, gelu_pytorch_tanh'):
        read_fields([ACTIVATION], {"act": "relu"})


def test_a_family_without_a_name_for_a_value_does_not_express_the_model() -> None:
    model = Model.model_validate(read_config(LLAMA_2_7B) | {"mlp": {"activation": "relu"}})
    family = replace(FAMILIES["llama"], fields=(*FAMILIES["llama"].fields, ACTIVATION))

    assert family.to_config(model) is None


def test_a_path_leads_through_objects_only() -> None:
    assert get_path({"a": {"b": 1}}, "a.b") == 1
    assert get_path({"a": 1}, "a.b") is None
