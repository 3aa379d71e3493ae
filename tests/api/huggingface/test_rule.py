"""Rules bound to a network: the names in the files, and the part of our tensor that each is."""

from dataclasses import replace

import pytest

from trainingjob_api.huggingface.layout import layout_shape
from trainingjob_api.huggingface.registry import FAMILIES
from trainingjob_api.huggingface.rule import Binding, Rule, bind_rules
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.spec.model import Model

MODEL = Model(vocab_size=96, embed_dim=16, mlp_dim=24, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8)
EXPERTS = MODEL.model_copy(update={"experts": Experts(count=4, per_token=2)})


def bind(model: Model, family: str) -> Binding:
    return FAMILIES[family].bind(resolve(model))


def test_every_tensor_in_the_files_of_a_layer_has_a_name_and_shape() -> None:
    binding = bind(MODEL, "llama")

    shapes = {name: pieces[0].file_shape for name, pieces in binding.by_file_name.items()}
    assert shapes["model.layers.2.self_attn.q_proj.weight"] == (32, 16)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (16, 24)
    assert shapes["lm_head.weight"] == (96, 16)
    assert len(shapes) == 3 + 3 * 9


def test_a_layer_is_one_index_of_the_stacked_tensor() -> None:
    (piece,) = bind(MODEL, "llama").by_file_name["model.layers.2.mlp.up_proj.weight"]

    assert piece.tensor.name == "layers.mlp.up"
    assert piece.plan_export().region == ((2, 3), (0, 16), (0, 24))
    assert piece.plan_import(((0, 2), (0, 16), (0, 24))) is None
    copy = piece.plan_import(((1, 3), (0, 16), (6, 12)))
    assert copy
    assert (copy.region, copy.placed) == (((6, 12), (0, 16)), ((1, 2), (0, 16), (0, 6)))


def test_an_expert_is_one_index_of_the_axis_in_its_name() -> None:
    (piece,) = bind(EXPERTS, "mixtral").by_file_name["model.layers.1.block_sparse_moe.experts.3.w2.weight"]

    assert piece.file_shape == (16, 24)
    assert piece.plan_export().region == ((1, 2), (3, 4), (0, 24), (0, 16))


def test_layers_of_groups_and_patterns_are_numbered_in_the_order_of_the_stack() -> None:
    network = resolve(MODEL)
    block = network.groups[0].pattern[0]
    groups = (Group("first", (block,), 2), Group("layers", (block, block), 2))

    binding = bind_rules(FAMILIES["llama"].rules, replace(network, groups=groups))

    tensors = [
        pieces[0].tensor.name
        for name, pieces in binding.by_file_name.items()
        if name.endswith("input_layernorm.weight")
    ]
    names = [name.split(".")[2] for name in binding.by_file_name if name.endswith("input_layernorm.weight")]
    assert dict(zip(names, tensors, strict=True)) == {
        "0": "first.attention_norm.scale",
        "1": "first.attention_norm.scale",
        "2": "layers.0.attention_norm.scale",
        "3": "layers.1.attention_norm.scale",
        "4": "layers.0.attention_norm.scale",
        "5": "layers.1.attention_norm.scale",
    }


def test_tensors_without_a_rule_are_listed() -> None:
    model = MODEL.model_copy(update={"attention": MODEL.attention.model_copy(update={"query_key_norm": "perHead"})})

    binding = bind(model, "llama")

    assert binding.by_tensor.keys() == {tensor.name for tensor in resolve(MODEL).tensors}
    assert binding.unmapped == (
        "layers.attention.query_norm.scale",
        "layers.attention.key_norm.scale",
    )


def test_sizes_that_are_no_dim_of_ours_are_given() -> None:
    rule = Rule("fused", "embedding", "v d+other -> v d")

    (piece,) = bind_rules([rule], only_embedding(), {"other": 3}).pieces

    assert piece.file_shape == (96, 19)
    assert piece.tensor_dims[0][0] == piece.file_dims[0][0]


def only_embedding() -> Network:
    network = resolve(MODEL.model_copy(update={"tie_embeddings": True}))
    return replace(network, groups=())


CASES = [(MODEL, "llama"), (MODEL.model_copy(update={"tie_embeddings": True}), "llama"), (EXPERTS, "mixtral")]


@pytest.mark.parametrize(("model", "family"), CASES, ids=["llama", "llama tied", "mixtral"])
def test_files_hold_each_number_of_the_network_once(model: Model, family: str) -> None:
    binding = bind(model, family)

    assert binding.unmapped == ()
    sizes = dict.fromkeys((tensor.name for tensor in resolve(model).tensors), 0)
    for piece in binding.pieces:
        shape = layout_shape(piece.file_dims, piece.sizes)
        sizes[piece.tensor.name] += shape[0] * (shape[1] if len(shape) > 1 else 1)
    assert sizes == {tensor.name: tensor.size for tensor in resolve(model).tensors}
