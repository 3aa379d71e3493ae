"""The network as data: its tensors, their roles, and several groups and patterns of layers."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.base import AXES, Axis
from trainingjob_api.network.attention import Attention, GroupedQueryAttention, HeadSizes
from trainingjob_api.network.block import Block
from trainingjob_api.network.embedding import Embedding, Head, Logits
from trainingjob_api.network.latent_attention import Latent
from trainingjob_api.network.layer_costs import LayerCosts
from trainingjob_api.network.mlp import DenseMlp, Mlp
from trainingjob_api.network.multi_token_prediction import MultiTokenPrediction
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.norm import HiddenNorm, Norm
from trainingjob_api.network.part import LAYER_AXES, Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.routed_mlp import Balance, Experts, RoutedMlp
from trainingjob_api.network.tensor import DecayClass, Normal, Ones, Role
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.sharding import count_shards
from trainingjob_api.spec.model import Init, Model

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "embed_dim": 32,
    "mlp_dim": 48,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
}
QUERY_KEY_NORM = Attention(query_key_norm="perHead")
EXPERTS = Experts(count=4, per_token=1, shared=2)


def test_llama_3_8b_has_its_published_number_of_parameters() -> None:
    model = Model(
        vocab_size=128256, embed_dim=4096, mlp_dim=14336, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128
    )

    assert resolve(model).num_parameters == 8_030_261_248


def test_qwen3_8b_has_its_published_number_of_parameters() -> None:
    model = Model(
        vocab_size=151936, embed_dim=4096, mlp_dim=12288, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128,
        attention=QUERY_KEY_NORM,
    )  # fmt: skip

    assert resolve(model).num_parameters == 8_190_735_360


HEADS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "both unset": ({"num_kv_heads": None, "head_dim": None}, (4, 8)),
    "keys and values unset": ({"num_kv_heads": None, "head_dim": 6}, (4, 6)),
    "the width unset": ({"embed_dim": 48, "head_dim": None}, (2, 12)),
}


@pytest.mark.parametrize(("changes", "want"), HEADS.values(), ids=HEADS.keys())
def test_heads_that_are_unset_follow_from_other_dims(changes: dict[str, Any], want: tuple[int, int]) -> None:
    heads = Model(**SMALL | changes).heads

    assert (heads.num_kv_heads, heads.head_dim) == want
    written = dict(zip(("num_kv_heads", "head_dim"), want, strict=True))
    assert resolve(Model(**SMALL | changes)) == resolve(Model(**SMALL | changes | written))


def test_an_illegal_default_width_is_at_least_one_so_that_a_plan_can_report_the_rest() -> None:
    assert Model(**SMALL | {"embed_dim": 2, "head_dim": None}).heads.head_dim == 1


def test_norms_of_queries_and_keys_save_their_values_on_the_devices_of_their_heads() -> None:
    plain, normed = (
        next(iter(resolve(Model(**SMALL | changes)).blocks)).attention
        for changes in ({}, {"attention": QUERY_KEY_NORM})
    )

    def added(degrees: dict[Any, int]) -> int:
        shard = Shard(16, 2, {"context": 1} | degrees)
        return normed.saved_bytes(shard) - plain.saved_bytes(shard)

    assert added({}) == (4 + 2) * 8 * (3 * 4 + 2)
    assert added({"tensor": 2}) == (2 + 1) * 8 * (3 * 4 + 2)
    assert normed.flops(Shard(16, 2, {})) == plain.flops(Shard(16, 2, {}))


def test_a_shard_holds_its_part_of_what_the_mesh_divides_and_all_of_the_rest() -> None:
    tensors = resolve(Model(**SMALL | {"vocab_size": 97})).tensors
    ways = count_shards({"data": 3, "fsdp": 2, "tensor": 2})
    sizes = {tensor.name: tensor.shard_size(ways) for tensor in tensors}

    assert sizes["layers.mlp.gate"] == 3 * 32 // 2 * 48 // 2
    assert sizes["layers.attention.out"] == 3 * 4 // 2 * 8 * 32 // 2
    assert sizes["norm.scale"] == 32
    assert sizes["embedding"] == 97 * 32 // 2  # 97 rows are not split in two


NORM = (DecayClass.NORM, Role.VECTOR, Ones())
INPUT, PAIRED = ((DecayClass.MATRIX, role, Normal(32**-0.5)) for role in (Role.INPUT, Role.PAIRED_INPUT))
DENSE = {
    "embedding": (DecayClass.EMBEDDING, Role.TABLE, Normal(0.5)),
    "layers.attention_norm.scale": NORM,
    "layers.attention.query": INPUT,
    "layers.attention.key": INPUT,
    "layers.attention.value": PAIRED,
    "layers.attention.out": (DecayClass.MATRIX, Role.MIXER_OUTPUT, Normal(32**-0.5)),
    "layers.mlp_norm.scale": NORM,
    "layers.mlp.gate": INPUT,
    "layers.mlp.up": PAIRED,
    "layers.mlp.down": (DecayClass.MATRIX, Role.MLP_OUTPUT, Normal(48**-0.5)),
    "norm.scale": NORM,
    "head": (DecayClass.MATRIX, Role.HEAD, Normal(32**-0.5)),
}
QUERY_KEY_SCALES = {"layers.attention.query_norm.scale": NORM, "layers.attention.key_norm.scale": NORM}
ROUTED = {
    "layers.mlp.router": (DecayClass.ROUTER, Role.INPUT, Normal(32**-0.5)),
    "layers.mlp.gate": (DecayClass.EXPERT, Role.INPUT, Normal(32**-0.5)),
    "layers.mlp.up": (DecayClass.EXPERT, Role.PAIRED_INPUT, Normal(32**-0.5)),
    "layers.mlp.down": (DecayClass.EXPERT, Role.MLP_OUTPUT, Normal(48**-0.5)),
    "layers.mlp.shared.gate": INPUT,
    "layers.mlp.shared.up": PAIRED,
    "layers.mlp.shared.down": (DecayClass.MATRIX, Role.MLP_OUTPUT, Normal(96**-0.5)),
}


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, DENSE),
        ({"tie_embeddings": True}, {name: values for name, values in DENSE.items() if name != "head"}),
        ({"experts": EXPERTS}, DENSE | ROUTED),
        ({"attention": QUERY_KEY_NORM}, DENSE | QUERY_KEY_SCALES),
    ],
    ids=["dense", "tied", "experts", "query-key norm"],
)
def test_each_tensor_states_its_class_role_and_initial_values(changes: dict[str, Any], want: dict[str, Any]) -> None:
    tensors = resolve(Model(**SMALL | {"init": Init(std=0.5)} | changes)).tensors

    assert {tensor.name: (tensor.decay, tensor.role, tensor.init) for tensor in tensors} == want


INPUTS = {"query": 32, "key": 32, "gate": 32, "router": 32, "head": 32, "out": 32, "down": 48, "token_projection": 64}
LATENT = {"queryRank": 16, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 8, "valueDim": 6}


@pytest.mark.parametrize(
    ("options", "want", "of_outputs"),
    [
        ({"scale": 2.25}, lambda inputs: 1.5 * inputs**-0.5, 1.0),
        ({"std": 0.02}, lambda inputs: 0.02, 1.0),
        ({"std": 0.02, "scaleByDepth": True}, lambda inputs: 0.02, 6**-0.5),
        ({"scaleByDepth": True}, lambda inputs: inputs**-0.5, 6**-0.5),
    ],
    ids=["scale", "std", "std by depth", "by depth"],
)
def test_options_change_the_initial_values_of_all_matrices(
    options: dict[str, Any], want: Callable[[int], float], of_outputs: float
) -> None:
    init = Init.model_validate({"std": 0.5, "matrices": options})
    changes = {"init": init, "experts": EXPERTS, "multi_token_prediction": MultiTokenPrediction()}
    tensors = resolve(Model(**SMALL | changes)).tensors

    found = {tensor.local_name: tensor.init for tensor in tensors if "shared" not in tensor.name}
    for name, inputs in INPUTS.items():
        factor = of_outputs if name in ("out", "down") else 1.0
        assert found[name] == Normal(pytest.approx(factor * want(inputs)))
    assert found["embedding"] == Normal(0.5)
    assert found["scale"] == Ones()


def test_options_change_the_initial_values_of_latent_attention() -> None:
    init = Init.model_validate({"matrices": {"std": 0.02, "scaleByDepth": True}})
    model = Model(**SMALL | {"init": init, "latent_attention": Latent.model_validate(LATENT)})

    matrices = {
        one.local_name: one.init for one in resolve(model).tensors if "attention." in one.name and one.is_matrix
    }
    assert matrices.pop("out") == Normal(pytest.approx(0.02 * 6**-0.5))
    assert set(matrices.values()) == {Normal(0.02)}
    assert len(matrices) == 6


def make_block(*, heads: int = 4, routed: bool = False) -> Block:
    mlp = RoutedMlp(32, 48, EXPERTS, Mlp()) if routed else DenseMlp(32, 48, Mlp())
    attention = GroupedQueryAttention(32, HeadSizes(heads, 2, 8), Attention(), Rope(), Norm())
    return Block(attention, mlp, HiddenNorm(32, Norm()), HiddenNorm(32, Norm()))


def make_network(*groups: Group) -> Network:
    return Network(
        Embedding(96, 32, 0.02), groups, HiddenNorm(32, Norm()), Head(32, 96, is_tied=True, options=Logits())
    )


def test_blocks_of_a_pattern_and_groups_have_names_of_their_own() -> None:
    local, other = make_block(), make_block(heads=6)
    network = make_network(Group("first", (local,), 2), Group("layers", (local, other), 5))
    shapes = {tensor.name: tensor.shape for tensor in network.tensors}

    assert shapes["first.attention.query"] == (2, 32, 4, 8)
    assert shapes["layers.0.attention.query"] == (5, 32, 4, 8)
    assert shapes["layers.1.attention.query"] == (5, 32, 6, 8)
    assert len(shapes) == 1 + 3 * 9 + 1
    assert network.blocks == {local: 7, other: 5}


def test_a_degree_must_divide_the_dims_of_all_groups() -> None:
    network = make_network(Group("first", (make_block(),), 2), Group("layers", (make_block(heads=6),), 4))

    assert {axis: network.common_dims[axis] for axis in ("layers", "heads", "kv_heads", "embed", "vocab")} == {
        "layers": 1,
        "heads": 2,
        "kv_heads": 2,
        "embed": 32,
        "vocab": 96,
    }
    assert "experts" not in network.common_dims


def test_only_the_routed_experts_of_routed_layers_are_inactive() -> None:
    network = make_network(Group("first", (make_block(),), 1), Group("layers", (make_block(routed=True),), 2))

    assert network.num_parameters - network.num_active_parameters == 2 * 3 * 3 * 32 * 48  # layers, experts, matrices
    assert network.num_routed_layers == 2
    assert network.load_balance_weight == 0.01
    assert make_network(Group("layers", (make_block(),), 2)).load_balance_weight == 0


def test_equal_networks_are_one_cache_entry() -> None:
    first, second = (make_network(Group("layers", (make_block(),), 2)) for _ in range(2))

    assert len({first, second, make_network(Group("layers", (make_block(),), 3))}) == 2


def test_biases_of_experts_belong_to_the_experts() -> None:
    experts = EXPERTS.model_copy(update={"router_bias": True})
    plain, biased = (
        next(iter(resolve(Model(**SMALL | {"experts": experts, "mlp": Mlp(bias=bias)})).blocks)).mlp
        for bias in (False, True)
    )
    added = {tensor.name: tensor.shape for tensor in biased.tensors if tensor not in plain.tensors}

    assert added == {
        "gate_bias": (4, 48),
        "up_bias": (4, 48),
        "down_bias": (4, 32),
        "shared.gate_bias": (96,),
        "shared.up_bias": (96,),
        "shared.down_bias": (32,),
    }
    inactive = {part: sum(one.size - part.active_size(one) for one in part.tensors) for part in (biased, plain)}
    assert inactive[biased] - inactive[plain] == 3 * (48 + 48 + 32)
    assert biased.flops(Shard(16, 2, {"expert": 1})) == plain.flops(Shard(16, 2, {"expert": 1}))


def test_a_given_scale_replaces_that_of_the_head_width() -> None:
    default, given = (
        next(iter(resolve(Model(**SMALL | {"attention": Attention(scale=scale)})).blocks)).attention
        for scale in (None, 0.25)
    )

    assert default.scale == 8**-0.5
    assert given.scale == 0.25


LAYER_GROUPS: dict[str, tuple[dict[str, Any], list[tuple[str, int, int]]]] = {
    "all alike": ({}, [("layers", 1, 7)]),
    "leading": ({"leading": [{"count": 2, "positions": "none"}]}, [("leading_0", 1, 2), ("layers", 1, 5)]),
    "two kinds of leading layers": (
        {"leading": [{"positions": "none"}, {"count": 2, "attention": "full"}]},
        [("leading_0", 1, 1), ("leading_1", 1, 2), ("layers", 1, 4)],
    ),
    "leading layers alone": ({"leading": [{"count": 9}]}, [("leading_0", 1, 7)]),
    "a pattern": ({"pattern": [{"count": 2}, {"positions": "none"}]}, [("layers", 3, 2), ("trailing_0", 1, 1)]),
    "a pattern that does not fit": ({"pattern": [{"count": 8}, {"positions": "none"}]}, [("trailing_0", 1, 7)]),
}


@pytest.mark.parametrize(("layers", "want"), LAYER_GROUPS.values(), ids=LAYER_GROUPS)
def test_layers_are_grouped_by_leading_layers_and_patterns(
    layers: dict[str, Any], want: list[tuple[str, int, int]]
) -> None:
    network = resolve(Model.model_validate(Model(**SMALL | {"num_layers": 7}).model_dump() | {"layers": layers}))

    assert [(group.name, len(group.pattern), group.repeats) for group in network.groups] == want
    assert sum(network.blocks.values()) == 7


def test_the_rate_of_balancing_biases_is_that_of_the_routed_layers() -> None:
    rates = {
        rate: resolve(Model(**SMALL | {"experts": EXPERTS.model_copy(update={"balance": Balance(bias_rate=rate)})}))
        for rate in (None, 0.001)
    }

    assert {rate: network.balance_rate for rate, network in rates.items()} == {None: None, 0.001: 0.001}
    assert resolve(Model(**SMALL)).balance_rate is None


def test_only_kernels_that_name_their_output_save_it() -> None:
    """The attention of cuDNN runs again in the backward pass of every policy that computes anything again."""
    model = Model(vocab_size=257, embed_dim=512, mlp_dim=1024, num_layers=1, num_heads=8, num_kv_heads=8, head_dim=64)
    shard = Shard(8192, 2, dict.fromkeys(AXES, 1))
    found = {}
    for accelerator in ("nvidia-h100", "tpu-v5p", "cpu"):
        ((block,),) = (group.pattern for group in resolve(model).on(accelerator).groups)
        names = [activation.name for activation in block.activations(shard)]
        found[block.attention.choose_kernel(shard).name] = "attentionOutput" in names

    assert found.pop("cudnn") is False
    assert found == dict.fromkeys(found, True)


def test_products_of_dropless_experts_are_not_saved_by_name() -> None:
    shard = Shard(16, 2, {"expert": 1})
    names = {
        dispatch: [
            one.name
            for one in RoutedMlp(32, 48, EXPERTS.model_copy(update={"dispatch": dispatch}), Mlp()).activations(shard)
        ]
        for dispatch in ("capacity", "dropless")
    }
    alone = EXPERTS.model_copy(update={"dispatch": "dropless", "shared": 0})

    assert names["capacity"] == names["dropless"] * 2
    assert RoutedMlp(32, 48, alone, Mlp()).activations(shard) == ()


@pytest.mark.parametrize("preset", ["llama3.1-8b", "gemma3-4b", "mixtral-8x7b", "deepseek2-16b", "gpt-oss-20b"])
def test_costs_of_a_layer_depend_only_on_the_axes_of_their_key(preset: str) -> None:
    others: tuple[Axis, ...] = ("data", "stage", "fsdp")
    assert {*others, *LAYER_AXES} == set(AXES)

    for block in resolve(Model.model_validate(PRESETS[preset].model)).blocks:
        alone, spread = (Shard(8192, 2, dict.fromkeys(AXES, 2) | dict.fromkeys(others, degree)) for degree in (1, 4))
        assert alone.key == spread.key
        assert vars(LayerCosts(block, alone)) == vars(LayerCosts(block, spread))
