"""Modules of multi-token prediction in the files of DeepSeek-V3: layers after the last one."""

import jax
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture, to_files
from trainingjob_api.huggingface.registry import find_family, write_config
from trainingjob_api.network.multi_token_prediction import MultiTokenPrediction
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.huggingface.import_weights import match_tensors
from trainingjob_trainer.models.decoder import SplitModel
from trainingjob_trainer.models.trainable import tensor_name

FIXTURE = Fixture("deepseek_v3")
MODEL = FIXTURE.model.model_copy(update={"multi_token_prediction": MultiTokenPrediction(depth=2)})
WIDTH, LAYERS = MODEL.embed_dim, MODEL.num_layers


@pytest.mark.thorough
def test_each_module_is_a_layer_of_the_files() -> None:
    network = resolve(MODEL)
    binding = find_family(FIXTURE.config).bind(network)
    params = SplitModel(network, Precision(compute="float32"), Memory()).init(3)
    ours = {tensor_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    files = to_files(ours, binding)

    assert binding.unmapped == ()
    assert not any(np.isnan(values).any() for values in files.values())
    for depth in range(2):
        place = f"model.layers.{LAYERS + depth}"
        projection = files[f"{place}.eh_proj.weight"]
        np.testing.assert_array_equal(projection[:, :WIDTH], ours["prediction.token_projection"][depth].T)
        np.testing.assert_array_equal(projection[:, WIDTH:], ours["prediction.hidden_projection"][depth].T)
        for name, tensor in (("enorm", "token_norm"), ("hnorm", "hidden_norm"), ("shared_head.norm", "norm")):
            np.testing.assert_array_equal(files[f"{place}.{name}.weight"], ours[f"prediction.{tensor}.scale"][depth])
        np.testing.assert_array_equal(
            files[f"{place}.input_layernorm.weight"], ours["prediction.block.attention_norm.scale"][depth]
        )
        assert f"{place}.mlp.experts.0.gate_proj.weight" in files


def test_files_without_modules_lack_them_and_files_with_modules_need_not_be_used() -> None:
    family = find_family(FIXTURE.config)
    without = match_tensors(FIXTURE.weights, family.bind(resolve(MODEL)), family.derived)

    assert all(
        name.startswith(f"model.layers.{LAYERS}.") or f"layers.{LAYERS + 1}." in name for name in without.missing
    )
    assert f"model.layers.{LAYERS}.eh_proj.weight" in without.missing
    assert all(name.startswith("prediction.") for name in without.incomplete)


def test_a_model_with_modules_is_exported_with_their_number() -> None:
    found = write_config(MODEL)

    assert found is not None
    family, config = found
    assert (family.model_type, config["num_nextn_predict_layers"]) == ("deepseek_v3", 2)
    plain = write_config(FIXTURE.model)
    assert plain is not None
    assert plain[1]["num_nextn_predict_layers"] == 0  # not that of the initial weights


def test_other_families_have_no_files_for_modules() -> None:
    llama = Fixture("llama").model.model_copy(update={"multi_token_prediction": MultiTokenPrediction()})

    assert write_config(llama) is None
