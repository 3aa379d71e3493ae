"""Quantized matmuls of a network: its matrices, those that a pattern excludes, and their FLOPs."""

from typing import Any

import pytest

from trainingjob_api.network.activations import SavedActivations
from trainingjob_api.network.adapt import adapt
from trainingjob_api.network.block import Block
from trainingjob_api.network.fingerprint import fingerprint
from trainingjob_api.network.freeze import freeze
from trainingjob_api.network.network import Network
from trainingjob_api.network.part import Shard
from trainingjob_api.network.quantize import count_quantized_flops, list_quantizable, quantize
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Quantization

SMALL = {"vocab_size": 97, "embed_dim": 32, "mlp_dim": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2}
DENSE = {"attention.query", "attention.key", "attention.value", "attention.out", "mlp.gate", "mlp.up", "mlp.down"}
LATENT = {
    "num_kv_heads": None,
    "latentAttention": {"queryRank": 8, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 8, "valueDim": 8},
}
SHARD = Shard(64, 2, {})
NOTHING_SAVED = SavedActivations(frozenset())
SIZES = {"query": 32 * 32, "key": 32 * 16, "value": 32 * 16, "out": 32 * 32, "gate": 1536, "up": 1536, "down": 1536}
SIZE = sum(SIZES.values())


def network_with(kind: Any = "int8", exclude: tuple[str, ...] = (), **changes: Any) -> Network:
    model = {name: value for name, value in (SMALL | changes).items() if value is not None}
    return quantize(resolve(Model.model_validate(model)), Quantization(type=kind, exclude=exclude))


def block_of(network: Network) -> Block:
    (block,) = network.blocks
    return block


def names_of(network: Network) -> set[str]:
    quantized = block_of(network).quantized
    return set(quantized.names) if quantized else set()


def test_the_matrices_of_a_layer_are_quantized() -> None:
    network = network_with()

    assert names_of(network) == DENSE
    assert network.quantized.keys() == {f"layers.{name}" for name in DENSE}
    assert {one.name for one in list_quantizable(network)} == network.quantized.keys()


def test_routers_are_not_quantized_but_experts_are() -> None:
    names = names_of(network_with(experts={"count": 4, "perToken": 2, "shared": 1}, mlp={"bias": True}))

    assert {name for name in names if name.startswith("mlp.")} == {
        *("mlp.gate", "mlp.up", "mlp.down", "mlp.shared.gate", "mlp.shared.up", "mlp.shared.down"),
    }


def test_the_projections_of_latent_attention_are_quantized() -> None:
    names = names_of(network_with(**LATENT))

    assert {name for name in names if name.startswith("attention.")} == {
        *("attention.query_down", "attention.query_up", "attention.key_value_down", "attention.rope_key"),
        *("attention.key", "attention.value", "attention.out"),
    }


def test_patterns_exclude_matrices_of_groups_and_positions() -> None:
    pattern = {"pattern": [{"attention": "window"}, {"attention": "full"}]}
    window = {"window": 8}
    network = network_with(exclude=("layers.0.*.query", "*.down"), layers=pattern, attention=window)

    first, second = (block.quantized for block in network.groups[0].pattern)
    assert first
    assert second
    assert first.names == DENSE - {"attention.query", "mlp.down"}
    assert second.names == DENSE - {"mlp.down"}


def test_a_layer_without_quantized_matrices_has_no_mark() -> None:
    network = network_with(exclude=("*",))

    assert block_of(network).quantized is None
    assert network == resolve(Model.model_validate(SMALL))
    assert network.quantized == {}


def test_the_layer_of_further_predictions_is_quantized() -> None:
    network = network_with(multi_token_prediction={"depth": 1})

    assert network.quantized.keys() == {f"{group}.{name}" for group in ("layers", "prediction.block") for name in DENSE}


def test_a_module_has_its_own_matrices() -> None:
    quantized = block_of(network_with(experts={"count": 4, "perToken": 2, "shared": 1})).quantized

    assert quantized
    assert quantized.of_module("mlp.").names == {"gate", "up", "down"}
    assert quantized.of_module("mlp.shared.").names == {"gate", "up", "down"}
    assert quantized.type_of("mlp.up") == "int8"
    assert quantized.type_of("mlp.router") is None


def test_the_fingerprint_of_a_model_is_that_without_quantization() -> None:
    """Plans and checkpoints compare the model section alone."""
    assert fingerprint(network_with(exclude=("*",))) == fingerprint(resolve(Model.model_validate(SMALL)))


@pytest.mark.parametrize(("kind", "passes"), [("int8", 2), ("fp8", 3)])
def test_the_passes_of_a_type_count(kind: str, passes: int) -> None:
    block = block_of(network_with(kind))

    assert count_quantized_flops(block, SHARD, None) == 2 * passes * SIZE
    assert count_quantized_flops(block_of(resolve(Model.model_validate(SMALL))), SHARD, None) == 0


def test_excluded_matrices_do_not_count() -> None:
    block = block_of(network_with(exclude=("*.mlp.*", "*.out")))

    assert count_quantized_flops(block, SHARD, None) == 4 * (SIZES["query"] + SIZES["key"] + SIZES["value"])


@pytest.mark.parametrize(
    ("saved", "placement", "repeated"),
    [
        ((), "pre", SIZE - SIZES["down"]),
        ((), "both", SIZE),
        (("query", "mlpGate"), "pre", SIZE - SIZES["down"] - SIZES["query"] - SIZES["gate"]),
        (("mlpOutput",), "both", SIZE - SIZES["down"]),
    ],
)
def test_products_that_are_computed_again_count(saved: tuple[str, ...], placement: str, repeated: int) -> None:
    block = block_of(network_with(norm={"placement": placement}))

    assert count_quantized_flops(block, SHARD, SavedActivations(frozenset(saved))) == 4 * SIZE + 2 * repeated


@pytest.mark.parametrize("dispatch", ["capacity", "dropless"])
def test_products_of_experts_that_have_no_name_are_computed_again(dispatch: str) -> None:
    experts = {"count": 4, "perToken": 2, "dispatch": dispatch, "capacityFactor": 2}
    block = block_of(network_with(exclude=("*.attention.*",), experts=experts))
    size = block.mlp.product_size(block.tensors_by_name["mlp.up"], SHARD)
    saved = SavedActivations(frozenset({"mlpGate", "mlpUp", "mlpOutput"}))

    again = 3 if dispatch == "dropless" else 0
    assert count_quantized_flops(block, SHARD, saved) == 2 * size * (2 * 3 + again)
    assert count_quantized_flops(block, SHARD, NOTHING_SAVED) == 2 * size * 9


def test_frozen_matrices_have_no_gradients() -> None:
    network = network_with("fp8")

    adapted = freeze(adapt(network, Lora(rank=2, alpha=4, targets=("*.query",))), ("*_lora_a", "*_lora_b"))
    forward = freeze(network, ("head",))
    assert names_of(adapted) == DENSE
    assert {one.name for one in list_quantizable(adapted)} == network.quantized.keys()
    assert count_quantized_flops(block_of(adapted), SHARD, None) == 2 * 2 * SIZE
    assert count_quantized_flops(block_of(forward), SHARD, NOTHING_SAVED) == 2 * SIZE
