"""The tensors of LoRA: adapters of matrices, and the scales of an int8 base."""

from typing import Any

from trainingjob_api.network.adapt import adapt, list_targets
from trainingjob_api.network.adapter import is_adapter
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Role, Storage, Tensor, Uniform, Zeros
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model

SMALL = {"vocab_size": 97, "embed_dim": 32, "mlp_dim": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2}
ROUTED = {"experts": {"count": 4, "perToken": 2, "shared": 1}}


def network_with(*targets: str, quantization: Any = None, **changes: Any) -> Network:
    lora = Lora(rank=2, alpha=4, targets=targets, base_quantization=quantization)
    return adapt(resolve(Model.model_validate(SMALL | changes)), lora)


def tensors_of(network: Network) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in network.tensors}


def test_an_adapter_has_the_sides_of_its_matrix() -> None:
    tensors = tensors_of(network_with("*.query", "*.out", "*.down"))

    added = {name: (one.shape, one.axes) for name, one in tensors.items() if "_lora_" in name}

    assert added == {
        "layers.attention.query_lora_a": ((4, 32, 2), ("layers", "embed", "rank")),
        "layers.attention.query_lora_b": ((4, 2, 4, 8), ("layers", "rank", "heads", "head")),
        "layers.attention.out_lora_a": ((4, 4, 8, 2), ("layers", "heads", "head", "rank")),
        "layers.attention.out_lora_b": ((4, 2, 32), ("layers", "rank", "embed")),
        "layers.mlp.down_lora_a": ((4, 48, 2), ("layers", "mlp", "rank")),
        "layers.mlp.down_lora_b": ((4, 2, 32), ("layers", "rank", "embed")),
    }
    assert {name for name, one in tensors.items() if is_adapter(one)} == added.keys()
    assert tensors["layers.attention.out_lora_a"].init == Uniform(32**-0.5)
    assert tensors["layers.attention.out_lora_b"].init == Zeros()


def test_routers_and_routed_experts_are_no_targets() -> None:
    names = {tensor.name for tensor in list_targets(network_with("*.query", **ROUTED))}

    assert {name for name in names if ".mlp." in name} == {
        "layers.mlp.shared.gate",
        "layers.mlp.shared.up",
        "layers.mlp.shared.down",
    }


def test_an_int8_base_has_a_scale_for_each_output() -> None:
    tensors = tensors_of(network_with("*.query", quantization="int8", **ROUTED))

    stored = {name for name, one in tensors.items() if one.storage is Storage.INT8}

    assert "layers.mlp.up" in stored
    assert not any(name in stored for name in ("embedding", "head", "layers.mlp.router", "norm.scale"))
    assert {f"{name}_scale" for name in stored} == {
        name for name, one in tensors.items() if one.storage is Storage.FLOAT32
    }
    up, out = tensors["layers.mlp.up_scale"], tensors["layers.attention.out_scale"]
    assert (up.shape, up.axes, up.role) == ((4, 4, 48), ("layers", "experts", "mlp"), Role.VECTOR)
    assert (out.shape, out.axes) == ((4, 32), ("layers", "norm"))
    assert tensors["layers.mlp.up"].of_layer().input_dims == (1,)


def test_a_pattern_may_choose_layers_of_a_repeating_pattern() -> None:
    layers = {"pattern": [{"count": 1}, {"positions": "none"}]}

    names = tensors_of(network_with("layers.1.attention.key", layers=layers))

    assert [name for name in names if "_lora_" in name] == [
        "layers.1.attention.key_lora_a",
        "layers.1.attention.key_lora_b",
    ]
