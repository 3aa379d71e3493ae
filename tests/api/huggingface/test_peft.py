"""Adapters in the format of PEFT: names and shapes of the files' tensors, modules, and the configuration."""

from typing import Any

import pytest

from trainingjob_api.huggingface.peft import (
    AdapterBinding,
    _adapter_rules,
    bind_adapters,
    list_config_problems,
    write_adapter_config,
)
from trainingjob_api.huggingface.registry import FAMILIES
from trainingjob_api.huggingface.rule import Rule
from trainingjob_api.network.adapt import adapt
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model

SIZES = {"vocabSize": 64, "embedDim": 16, "mlpDim": 24, "numLayers": 2, "numHeads": 4, "numKvHeads": 2, "headDim": 8}
LORA = Lora(rank=2, alpha=4, dropout=0.1, targets=("*.query", "*.out", "*.down"))
EXPERTS = {"experts": {"count": 4, "perToken": 2}}
LEARNED = {"positions": "learned", "maxPositions": 48, "norm": {"type": "layer"}, "numKvHeads": 4, "headDim": 4}


def bind(*targets: str, family: str = "llama", **changes: Any) -> AdapterBinding:
    lora = LORA.model_copy(update={"targets": targets or LORA.targets})
    return bind_adapters(FAMILIES[family], adapt(resolve(Model.model_validate(SIZES | changes)), lora))


def test_each_layer_has_both_sides_of_its_adapters() -> None:
    shapes = {name: pieces[0].file_shape for name, pieces in bind().binding.by_file_name.items()}

    prefix = "base_model.model.model.layers.1"
    assert {name: shape for name, shape in shapes.items() if ".layers.1." in name} == {
        f"{prefix}.self_attn.q_proj.lora_A.weight": (2, 16),
        f"{prefix}.self_attn.q_proj.lora_B.weight": (32, 2),
        f"{prefix}.self_attn.o_proj.lora_A.weight": (2, 32),
        f"{prefix}.self_attn.o_proj.lora_B.weight": (16, 2),
        f"{prefix}.mlp.down_proj.lora_A.weight": (2, 24),
        f"{prefix}.mlp.down_proj.lora_B.weight": (16, 2),
    }
    assert len(shapes) == 12


def test_modules_have_short_names_where_these_match_no_other_module() -> None:
    layers = {"pattern": [{"count": 1}, {"positions": "none"}]}

    assert bind().modules == ("down_proj", "o_proj", "q_proj")
    assert bind("layers.1.attention.key", layers=layers).modules == ("model.layers.1.self_attn.k_proj",)


def test_a_matrix_that_holds_several_has_no_adapter_of_one() -> None:
    found = bind("*.query", "*.out", family="gpt2", **LEARNED)

    assert found.unmapped == ("layers.attention.query",)
    assert found.modules == ("transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj")


def test_experts_of_files_take_no_part() -> None:
    assert bind("*.attention.value", family="mixtral", **EXPERTS).modules == ("v_proj",)


def test_the_configuration_is_that_of_the_job() -> None:
    config = write_adapter_config(LORA, ("q_proj",), "meta-llama/Llama-3.1-8B", "main")

    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 4, 0.1)
    assert (config["peft_type"], config["target_modules"]) == ("LORA", ["q_proj"])
    assert config["base_model_name_or_path"] == "meta-llama/Llama-3.1-8B"
    assert list(list_config_problems(LORA, config)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3, not LORA"),
        ({"r": 8}, "r is 8, but `spec.lora.rank` is 2"),
        ({"lora_alpha": 2}, "lora_alpha is 2, but `spec.lora.alpha` is 4"),
        ({"use_dora": True}, "use_dora is True, which `spec.lora` does not have"),
        ({"bias": "all"}, "bias is all, which `spec.lora` does not have"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is {'q_proj': 4}, which `spec.lora` does not have"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is pissa, which `spec.lora` does not have"),
        ({"use_qalora": True}, "use_qalora is True, which `spec.lora` does not have"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is [[0, 2]], which `spec.lora` does not have"),
        ({"kasa_config": {}}, "kasa_config is {}, which `spec.lora` does not have"),
        ({"alora_invocation_tokens": [7]}, "alora_invocation_tokens is [7], which `spec.lora` does not have"),
    ],
)
def test_another_configuration_is_a_problem(changes: dict[str, Any], problem: str) -> None:
    config = write_adapter_config(LORA, ("q_proj",), None, None) | changes

    assert list(list_config_problems(LORA, config)) == [problem]


def test_a_matrix_whose_sides_mix_input_and_output_has_no_adapter() -> None:
    network = adapt(resolve(Model.model_validate(SIZES)), LORA)
    mixed = Rule("model.mixed.weight", "attention.query", "(embed heads) head -> embed heads head")

    assert list(_adapter_rules(mixed, network)) == []
