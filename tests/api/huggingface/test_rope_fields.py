"""Rotary positions of `config.json`, in the older and the newer form, and what no model section expresses."""

from typing import Any

import pytest

from tests.api.huggingface.test_config import LLAMA_2_7B, fixture
from trainingjob_api.huggingface.config_fields import ConfigError
from trainingjob_api.huggingface.registry import FAMILIES, read_config
from trainingjob_api.spec.model import Model

LLAMA = LLAMA_2_7B | {"rope_theta": 5e5}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
WINDOWS = {"layer_types": ["sliding_attention"] * 4}


def read_rope(config: dict[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = read_config(config)["rope"]
    return rope


def by_kind(full: dict[str, Any] | None, window: dict[str, Any] | None) -> dict[str, Any]:
    kinds = {"full_attention": full, "sliding_attention": window}
    return {"rope_parameters": {kind: rope for kind, rope in kinds.items() if rope is not None}}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": LINEAR | {"rope_theta": 100.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 100.0}},
        {"rope_parameters": LINEAR | {"rope_theta": 100.0}},
        {"rope_parameters": LINEAR | {"rope_theta": 100.0}, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": LINEAR | {"partial_rotary_factor": 1.0}, "rope_theta": 100.0},
    ],
)
def test_the_base_inside_of_a_scaling_counts(changes: dict[str, Any]) -> None:
    rope = read_rope(LLAMA | changes)

    assert rope == {"theta": 100.0, "scaling": {"type": "linear", "factor": 4.0}}


def test_a_given_factor_of_yarn_counts_before_those_that_it_follows_from() -> None:
    given = read_rope(LLAMA | {"rope_scaling": YARN | {"attention_factor": 1.3, "mscale": 1.0, "mscale_all_dim": 0.5}})
    derived = read_rope(LLAMA | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}})

    assert given["scaling"]["yarn"] == {"attentionFactor": 1.3}
    assert derived["scaling"]["yarn"] == {"attentionFactor": pytest.approx(1.1386294 / 1.0693147)}


def test_the_original_length_beside_the_scaling_counts() -> None:
    rope = read_rope(LLAMA | {"rope_scaling": YARN, "original_max_position_embeddings": 512})

    assert rope["scaling"]["originalLength"] == 512


REJECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "two scalings": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": LINEAR},
        (
            'config.json: `rope_scaling` is {"rope_type": "linear", "factor": 4.0}, and `rope_parameters` has another '
            "scaling. Remove one of them."
        ),
    ),
    "kinds of layers in an architecture without them": (
        "llama",
        by_kind({"rope_theta": 1e4}, {"rope_theta": 1e4}),
        (
            "config.json: `rope_parameters` has positions by kind of layer, and all layers of the architecture have "
            "the same."
        ),
    ),
    "one form for all kinds of layers": (
        "gemma3_text",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        (
            "config.json: `rope_parameters` must hold `full_attention` and `sliding_attention`: they differ in the "
            "architecture."
        ),
    ),
    "a scaling of layers with a window": (
        "olmo3",
        by_kind({"rope_theta": 1e4}, LINEAR),
        'config.json: `rope_parameters.sliding_attention.rope_type` is "linear", and only "default" is supported.',
    ),
    "positions of a part of each head": (
        "llama",
        {"partial_rotary_factor": 0.5},
        "config.json: `partial_rotary_factor` is 0.5, and only 1 is supported.",
    ),
    "positions of a part of each head in the newer form": (
        "qwen3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "config.json: `rope_scaling.partial_rotary_factor` is 0.5, and only 1 is supported.",
    ),
}


@pytest.mark.parametrize(("name", "changes", "message"), REJECTED.values(), ids=REJECTED)
def test_positions_that_no_model_section_expresses_are_rejected(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(fixture(name) | changes)

    assert str(caught.value) == message


def test_a_scaling_of_another_kind_is_an_error_that_names_the_field() -> None:
    with pytest.raises(ConfigError, match="`rope_scaling` or a field that it depends on has a value of another kind"):
        read_config(LLAMA | {"rope_scaling": "yarn", "original_max_position_embeddings": 512})


def test_a_missing_base_by_kind_is_that_of_the_older_fields() -> None:
    config = fixture("gemma3_text") | by_kind({"rope_type": "default"}, None)

    section = read_config(config | {"rope_theta": 300.0, "rope_local_base_freq": 77.0})

    assert section["rope"] == {"theta": 300.0}
    assert section["layers"]["pattern"][0]["rope"] == {"theta": 77.0}


@pytest.mark.parametrize(("name", "theta"), [("gemma3_text", 77.0), ("gemma2", 300.0)])
def test_a_model_of_windows_alone_has_their_base(name: str, theta: float) -> None:
    config = {key: value for key, value in fixture(name).items() if key != "rope_parameters"} | WINDOWS
    layers = {"num_hidden_layers": 4, "rope_theta": 300.0, "rope_local_base_freq": 77.0}

    section = read_config(config | layers)

    assert section["rope"] == {"theta": theta}
    written = FAMILIES[name].to_config(Model.model_validate(section))
    assert written
    assert read_config(written) == section


def test_windows_without_another_base_have_that_of_all_layers() -> None:
    config = {key: value for key, value in fixture("olmo3").items() if key != "rope_parameters"}
    layers = {"layer_types": ["sliding_attention"] * config["num_hidden_layers"]}

    assert read_config(config | layers)["rope"] == {"theta": 5e5}
    assert read_config(config | layers | {"rope_theta": 300.0})["rope"] == {"theta": 300.0}


def test_the_base_of_windows_is_written_for_older_versions_too() -> None:
    section = read_config(fixture("gemma3_text") | by_kind({"rope_theta": 300.0}, {"rope_theta": 300.0}))

    written = FAMILIES["gemma3_text"].to_config(Model.model_validate(section))

    assert written
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (300.0, 300.0)
