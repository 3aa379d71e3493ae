"""Multi-token prediction: the modules' tensors, and their part in the counts of a network."""

import pytest

from trainingjob_api.huggingface.registry import FAMILIES, write_config
from trainingjob_api.network.multi_token_prediction import MultiTokenPrediction
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import DecayClass, Role
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.spec.model import Model

SMALL = Model(vocab_size=64, embed_dim=16, mlp_dim=24, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8)


def with_depth(model: Model, depth: int) -> Model:
    return model.model_copy(update={"multi_token_prediction": MultiTokenPrediction(depth=depth)})


def test_deepseek_v3_has_the_published_size_of_its_module() -> None:
    model = Model.model_validate(PRESETS["deepseek3-671b"].model)
    one, two = (resolve(with_depth(model, depth)) for depth in (1, 2))

    own = one.num_parameters - resolve(model).num_parameters
    assert own == pytest.approx(11.5e9, rel=0.02)  # README_WEIGHTS.md of DeepSeek-V3: without the shared tables
    assert two.num_parameters - one.num_parameters == own


def test_each_tensor_of_a_module_is_stacked_and_states_its_class() -> None:
    network = resolve(with_depth(SMALL, 2))

    tensors = {tensor.name: tensor for tensor in network.tensors if tensor.name.startswith("prediction.")}
    (block,) = network.groups[0].pattern
    norms = {f"prediction.{name}.scale" for name in ("token_norm", "hidden_norm", "norm")}
    projections = {"prediction.token_projection", "prediction.hidden_projection"}
    assert tensors.keys() == {f"prediction.block.{tensor.name}" for tensor in block.tensors} | norms | projections
    assert all(tensor.shape[0] == 2 for tensor in tensors.values())
    assert {tensors[name].decay for name in norms} == {DecayClass.NORM}
    assert {(tensors[name].shape, tensors[name].role) for name in projections} == {((2, 16, 16), Role.INPUT)}
    assert network.tensors[0] == network.table
    assert network.tensors[-1] == network.head_matrix


def test_modules_count_as_layers_and_as_output_projections() -> None:
    plain, network = resolve(SMALL), resolve(with_depth(SMALL, 2))

    assert list(network.blocks.values()) == [6]
    assert network.num_head_matmuls == 3 * plain.num_head_matmuls
    assert (list(network.layer_blocks.values()), list(network.module_blocks.values())) == ([4], [2])
    assert network.common_dims["layers"] == 4, "stages divide the layers, and each holds the modules"
    assert network.prediction
    assert network.prediction.num_projected == 2 * 2 * 16 * 16


def test_modules_have_the_kernels_of_the_accelerator() -> None:
    network = resolve(with_depth(SMALL, 1)).on("tpu-v5p")

    assert network.prediction
    assert network.prediction.block.attention.accelerator == "tpu-v5p"
    assert hash(network) != hash(resolve(SMALL).on("tpu-v5p"))


def test_files_of_deepseek_v3_hold_modules_as_layers_after_the_last_one() -> None:
    preset = PRESETS["deepseek3-tiny"]
    model = with_depth(Model.model_validate(preset.model), 2)
    family, layers = FAMILIES["deepseek_v3"], model.num_layers

    binding = family.bind(resolve(model))
    config = family.to_config(model)

    assert binding.unmapped == ()
    names = {
        name
        for name in binding.by_file_name
        if name.startswith((f"model.layers.{layers}.", f"model.layers.{layers + 1}."))
    }
    assert {f"model.layers.{layers + depth}.eh_proj.weight" for depth in range(2)} <= names
    assert all(
        len(binding.by_file_name[name]) == (2 if "eh_proj" in name or ("kv_" in name and "proj" in name) else 1)
        for name in names
    )
    assert config is None or config["num_nextn_predict_layers"] == 2


@pytest.mark.thorough
def test_a_config_states_the_number_of_modules() -> None:
    model = with_depth(Model.model_validate(PRESETS["deepseek3-671b"].model), 1)

    found = write_config(model)

    assert found is not None
    assert found[1]["num_nextn_predict_layers"] == 1
    assert write_config(with_depth(SMALL, 1)) is None, "no other family has files for modules"
