"""Frozen tensors: which ones patterns leave out, and which gradients the backward pass still computes."""

from typing import Any

import pytest

from trainingjob_api.network.freeze import freeze, matches_any
from trainingjob_api.network.network import Network
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.network.tensor import Gradients
from trainingjob_api.network.tensor_names import nearest_patterns
from trainingjob_api.spec.model import Model

SMALL = {"vocab_size": 97, "embed_dim": 32, "mlp_dim": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2}
ONE = Shard(16, 2, {"context": 1, "tensor": 1})
LEADING = {"leading": [{"count": 1}], "pattern": [{"count": 1}]}


def network_with(*trainable: str, **changes: Any) -> Network:
    return freeze(resolve(Model.model_validate(SMALL | changes)), trainable)


def gradients_of(network: Network) -> dict[str, Gradients]:
    return {tensor.name: tensor.gradients for tensor in network.tensors}


def test_the_pattern_of_all_names_freezes_nothing() -> None:
    assert network_with("*") == network_with("embedding", "*") == resolve(Model.model_validate(SMALL))


def test_a_star_matches_any_characters() -> None:
    assert matches_any("layers.attention.query", ("*.query",))
    assert matches_any("layers.attention.query", ("layers.*",))
    assert not matches_any("layers.attention.query", ("layers", "attention.*", "query"))


def test_frozen_matrices_after_a_trained_one_have_gradients_of_their_inputs() -> None:
    network = network_with("*.attention.query", "norm.*")

    found = gradients_of(network)

    assert {name for name, one in found.items() if one is Gradients.ALL} == {"layers.attention.query", "norm.scale"}
    assert {name for name, one in found.items() if one is Gradients.NONE} == {"embedding"}
    assert network.num_trainable_parameters == 4 * 32 * 4 * 8 + 32
    assert network.has_backward
    assert network.num_head_matmuls == 2


def test_no_gradient_passes_layers_before_the_first_trained_tensor() -> None:
    network = network_with("layers.*", layers=LEADING)

    (first, *_), (others, *_) = (group.pattern for group in network.groups)

    assert first.is_forward_only
    assert not others.is_forward_only
    whole = others.flops(ONE)
    assert first.flops(ONE).forward == whole.forward
    assert first.flops(ONE).backward == first.flops(ONE).recomputed == 0
    assert first.saved_bytes(ONE, None) == first.offloaded_bytes(ONE, None) == 0
    assert 0 < first.backward_bytes(ONE, None) <= others.backward_bytes(ONE, None)


def test_a_trained_embedding_needs_gradients_of_all_layers() -> None:
    network = network_with("embedding")

    assert not any(block.is_forward_only for block in network.blocks)
    assert gradients_of(network)["layers.mlp.up"] is Gradients.INPUT


def test_a_trained_head_alone_needs_no_gradient_before_it() -> None:
    network = network_with("head")

    assert not network.has_backward
    assert network.num_head_matmuls == 2
    assert all(block.is_forward_only for block in network.blocks)


@pytest.mark.parametrize("changes", [{}, {"experts": Experts(count=4, per_token=2)}], ids=["dense", "experts"])
def test_a_frozen_matrix_has_no_matmul_for_its_gradient(changes: dict[str, Any]) -> None:
    (trained,), (frozen,) = (
        network_with(*patterns, **changes).blocks for patterns in (("*",), ("norm.*", "embedding"))
    )
    matrices = [tensor for tensor in trained.tensors if tensor.is_matrix]
    products = 2 * sum(trained.part_of(tensor).product_size(tensor, ONE) for tensor in matrices)

    assert trained.flops(ONE).backward - frozen.flops(ONE).backward == products
    assert trained.flops(ONE).forward == frozen.flops(ONE).forward
    assert frozen.gathered_gradients(ONE.ways) == 0


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("q_proj", ("*.attention.query",)),
        ("model.embed_tokens", ("embedding",)),
        ("layers.*.attention.query", ("*.attention.query",)),
        ("layers.attention.quary", ("layers.attention.query",)),
        ("zzz", ()),
    ],
)
def test_the_nearest_names_are_those_of_the_model(pattern: str, nearest: tuple[str, ...]) -> None:
    names = [tensor.name for tensor in resolve(Model.model_validate(SMALL)).tensors]

    assert nearest_patterns(pattern, names)[:1] == nearest
