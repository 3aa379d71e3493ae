"""Fields of `config.json` as the newest `transformers` reads them: absent, null, or without effect there."""

from typing import Any

import pytest

from tests.api.huggingface.test_config import fixture
from trainingjob_api.huggingface.config_fields import ConfigError, get_path
from trainingjob_api.huggingface.registry import FAMILIES, read_config
from trainingjob_api.spec.model import Model

ABSENT: dict[str, tuple[str, str, str, object, object]] = {
    "window of Mistral": ("mistral", "sliding_window", "attention.window", 4096, None),
    "limit of scores in Gemma 2": ("gemma2", "attn_logit_softcapping", "attention.softCap", 50.0, None),
    "limit of logits in Gemma 2": ("gemma2", "final_logit_softcapping", "logits.softCap", 30.0, None),
    "epsilon of OLMo 3": ("olmo3", "rms_norm_eps", "norm.epsilon", 1e-5, 1e-5),
    "shared experts of DeepSeek V2": ("deepseek_v2", "n_shared_experts", "experts.shared", 2, None),
    "shared experts of DeepSeek V3": ("deepseek_v3", "n_shared_experts", "experts.shared", 1, None),
    "sum of weights in DeepSeek V3": ("deepseek_v3", "norm_topk_prob", "experts.normalizeWeights", True, True),
    "scale of weights in DeepSeek V3": ("deepseek_v3", "routed_scaling_factor", "experts.weightScale", 2.5, 2.5),
    "groups of DeepSeek V3": ("deepseek_v3", "n_group", "experts.groups.count", 8, None),
    "groups of a token in DeepSeek V3": ("deepseek_v3", "topk_group", "experts.groups.perToken", 4, None),
    "method of DeepSeek V2": ("deepseek_v2", "topk_method", "experts.groups", None, "rejected"),
}


@pytest.mark.parametrize(("name", "key", "path", "absent", "null"), ABSENT.values(), ids=ABSENT)
def test_a_field_that_is_absent_or_null_is_what_transformers_reads(
    name: str, key: str, path: str, absent: object, null: object
) -> None:
    config = fixture(name)
    without = {field: value for field, value in config.items() if field != key}

    assert get_path(read_config(without), path) == absent
    if null == "rejected":
        with pytest.raises(ConfigError, match=key):
            read_config(config | {key: None})
    else:
        assert get_path(read_config(config | {key: None}), path) == null


REJECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a limit of scores that Gemma 3 does not use": (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "config.json: `attn_logit_softcapping` is 50.0, and only null is supported.",
    ),
    "another activation in the field that newer versions read": (
        "gemma",
        {"hidden_act": "silu"},
        'config.json: `hidden_act` is "silu", and must be one of: gelu_pytorch_tanh, gelu.',
    ),
    "attention to later tokens": (
        "gemma2",
        {"use_bidirectional_attention": True},
        "config.json: `use_bidirectional_attention` is true, and only false is supported.",
    ),
    "biases of the MLPs in DeepSeek V2": (
        "deepseek_v2",
        {"mlp_bias": True},
        "config.json: `mlp_bias` is true, and only false is supported.",
    ),
    "a sum of weights that DeepSeek V2 does not use": (
        "deepseek_v2",
        {"norm_topk_prob": True},
        "config.json: `norm_topk_prob` is true, and only false is supported.",
    ),
    "an unknown method of DeepSeek V2": (
        "deepseek_v2",
        {"topk_method": "noaux_tc"},
        'config.json: `topk_method` is "noaux_tc", and only "group_limited_greedy" is supported.',
    ),
}


@pytest.mark.parametrize(("name", "changes", "message"), REJECTED.values(), ids=REJECTED)
def test_a_field_that_changes_the_model_is_never_ignored(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(fixture(name) | changes)

    assert str(caught.value) == message


def test_groups_of_deepseek_v2_belong_to_one_method() -> None:
    config = fixture("deepseek_v2")

    grouped, plain = (read_config(config | {"topk_method": method}) for method in ("group_limited_greedy", "greedy"))

    assert grouped["experts"]["groups"] == {"count": 3, "perToken": 2, "score": "best"}
    assert "groups" not in plain["experts"]
    for section, method in ((grouped, "group_limited_greedy"), (plain, "greedy")):
        written = FAMILIES["deepseek_v2"].to_config(Model.model_validate(section))
        assert written
        assert written["topk_method"] == method


def test_layers_of_mistral_may_have_windows_in_turn() -> None:
    kinds = ["sliding_attention", "full_attention"]

    section = read_config(fixture("mistral") | {"layer_types": kinds})

    assert section["attention"]["window"] == 12
    assert section["layers"]["pattern"] == [{}, {"attention": "full"}]
    written = FAMILIES["mistral"].to_config(Model.model_validate(section))
    assert written
    assert (written["layer_types"], written["sliding_window"]) == (kinds, 12)
    assert read_config(written) == section
    without = {key: value for key, value in fixture("mistral").items() if key != "sliding_window"}
    assert read_config(without | {"layer_types": kinds})["attention"]["window"] == 4096


@pytest.mark.parametrize(("kind", "window"), [("sliding_attention", 12), ("full_attention", None)])
def test_layers_of_mistral_of_one_kind_need_no_list(kind: str, window: int | None) -> None:
    section = read_config(fixture("mistral") | {"layer_types": [kind] * 2})

    assert get_path(section, "attention.window") == window
    written = FAMILIES["mistral"].to_config(Model.model_validate(section))
    assert written
    assert (written["sliding_window"], "layer_types" in written) == (window, False)


def test_gpt_oss_without_scaling_has_the_published_one() -> None:
    config = {key: value for key, value in fixture("gpt_oss").items() if not key.startswith("rope_")}

    section = read_config(config | {"rope_scaling": None})

    assert section["rope"]["scaling"]["factor"] == 32.0
    assert section["rope"]["scaling"]["originalLength"] == 4096


def test_gpt_oss_is_written_without_scaling_in_the_newer_form() -> None:
    section = read_config(fixture("gpt_oss") | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}})

    written = FAMILIES["gpt_oss"].to_config(Model.model_validate(section))

    assert section["rope"] == {"theta": 300.0}
    assert written
    assert written["rope_parameters"] == {"rope_type": "default", "rope_theta": 300.0}
    assert read_config(written) == section


def test_two_multiples_of_yarn_in_deepseek_are_written() -> None:
    config = fixture("deepseek_v3")
    rope = config["rope_parameters"] | {"mscale": 0.5, "mscale_all_dim": 0.9}
    section = read_config(config | {"rope_parameters": rope})

    written = FAMILIES["deepseek_v3"].to_config(Model.model_validate(section))

    assert written
    assert read_config(written)["rope"] == section["rope"]
    assert read_config(written)["attention"]["scale"] == pytest.approx(section["attention"]["scale"])
