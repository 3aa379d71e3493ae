"""Layers that differ, and scalings of rotary positions, in `config.json`."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainingjob_api.huggingface.config_fields import ConfigError
from trainingjob_api.huggingface.layer_fields import count_runs, find_cycle
from trainingjob_api.huggingface.registry import read_config, write_config
from trainingjob_api.spec.model import Model

FIXTURES = Path(__file__).parents[2] / "fixtures/huggingface"


def change(name: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / name / "config.json").read_text())
    return {key: value for key, value in (config | changes).items() if value != "absent"}


FULL = ["full_attention"] * 4
ERRORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown kind of layer": (
        change("gemma2", layer_types=["linear_attention"] * 3),
        "layer_types",
        'config.json: `layer_types` holds "linear_attention", and must be of: full_attention, sliding_attention.',
    ),
    "fewer kinds than layers": (
        change("gemma2", layer_types=["full_attention"] * 2),
        "layer_types",
        "config.json: `layer_types` has 2 kinds, and must have one for each of the 3 layers.",
    ),
    "tokens that attend to later ones": (
        change("gemma3_text", use_bidirectional_attention=True),
        "use_bidirectional_attention",
        "config.json: `use_bidirectional_attention` is true, and only false is supported.",
    ),
    "a window without size": (
        change("gemma2", sliding_window=None),
        "sliding_window",
        "config.json: `sliding_window` is missing.",
    ),
    "a chunk in a layer without positions": (
        change("llama4_text", layer_types=["chunked_attention"] * 4),
        "layer_types",
        (
            'config.json: `layer_types` is ["chunked_attention", "chunked_attention", "chunked_attention", '
            '"chunked_attention"], and must be full where layers have no rope.'
        ),
    ),
    "an unknown scaling": (
        change("llama", rope_parameters="absent", rope_scaling={"rope_type": "longrope", "factor": 4}),
        "rope_scaling.rope_type",
        'config.json: `rope_scaling.rope_type` is "longrope", and must be one of: linear, llama3, yarn.',
    ),
    "a scaling without factor": (
        change("llama", rope_parameters="absent", rope_scaling={"type": "linear"}),
        "rope_scaling.factor",
        "config.json: `rope_scaling.factor` is missing.",
    ),
}


@pytest.mark.parametrize(("config", "key", "message"), ERRORS.values(), ids=ERRORS)
def test_an_unsupported_layer_is_an_error_that_names_the_field(config: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(config)

    assert (caught.value.key, str(caught.value)) == (key, message)


@pytest.mark.parametrize(
    ("config", "layers", "window"),
    [
        (change("olmo3", layer_types=FULL), None, None),
        (change("olmo3", layer_types=["sliding_attention"] * 4), None, 12),
        (change("gemma2", layer_types="absent"), {"pattern": [{}, {"attention": "full"}]}, 12),
    ],
    ids=["all full", "all windows", "kinds of an older file"],
)
def test_layers_that_are_alike_have_no_pattern(config: dict[str, Any], layers: Any, window: int | None) -> None:
    section = read_config(config)

    assert section.get("layers") == layers
    assert section.get("attention", {}).get("window") == window
    assert write_config(Model.model_validate(section))


def test_the_cycle_of_an_older_gemma_3_has_the_length_that_the_file_states() -> None:
    older = change("gemma3_text", layer_types="absent", num_hidden_layers=8)

    usual, shorter, full = (
        read_config(older | changes) for changes in ({}, {"sliding_window_pattern": 2}, {"sliding_window_pattern": 1})
    )

    assert [kind.get("count", 1) for kind in usual["layers"]["pattern"]] == [5, 1]
    assert [kind.get("count", 1) for kind in shorter["layers"]["pattern"]] == [1, 1]
    assert shorter["layers"]["pattern"][1] == {"attention": "full"}
    assert "layers" not in full


def test_layers_with_a_window_keep_the_base_of_all_layers() -> None:
    plain = change("olmo3", rope_parameters="absent", rope_theta=1e6)
    model = Model.model_validate(read_config(plain))

    found = write_config(model)

    assert found
    base = {"rope_theta": 1e6, "rope_type": "default"}
    assert found[1]["rope_parameters"] == {"full_attention": base, "sliding_attention": base}
    assert Model.model_validate(read_config(found[1])) == model


def test_a_llama_4_of_equal_layers_has_no_pattern() -> None:
    section = read_config(
        change(
            "llama4_text",
            no_rope_layers=[1] * 4,
            moe_layers=[0, 1, 2, 3],
            layer_types="absent",
            use_qk_norm=False,
            attn_temperature_tuning=False,
        )
    )

    assert "layers" not in section
    assert section["attention"] == {"chunk": 16}
    found = write_config(Model.model_validate(section))
    assert found
    assert found[1]["attn_temperature_tuning"] is False
    assert found[1]["use_qk_norm"] is False


def test_layers_of_an_older_llama_4_follow_from_two_intervals() -> None:
    newer = read_config(change("llama4_text"))
    older = read_config(change("llama4_text", no_rope_layers="absent", moe_layers="absent", layer_types="absent"))

    assert older == newer


def test_a_llama_4_without_experts_is_none() -> None:
    section = read_config(change("llama4_text"))
    del section["experts"], section["layers"]

    assert write_config(Model.model_validate(section)) is None


def test_a_deepseek_may_have_experts_in_all_layers() -> None:
    section = read_config(change("deepseek_v3", first_k_dense_replace=0))

    assert "layers" not in section
    found = write_config(Model.model_validate(section))
    assert found
    assert found[1]["first_k_dense_replace"] == 0


def test_a_deepseek_without_modules_of_further_tokens_states_that() -> None:
    section = read_config(change("deepseek_v3", num_nextn_predict_layers=1))

    without, with_two = (
        write_config(Model.model_validate(section | changes))
        for changes in ({}, {"multiTokenPrediction": {"depth": 2}})
    )

    assert without
    assert with_two
    assert [config["num_nextn_predict_layers"] for _, config in (without, with_two)] == [0, 2]


def test_the_shortest_cycle_is_found() -> None:
    assert find_cycle("abcabca") == "abc"
    assert find_cycle("aaaa") == "a"
    assert find_cycle("abcd") == "abcd"
    assert count_runs([{"a": 1}, {"a": 1}, {}]) == [{"a": 1, "count": 2}, {}]
