"""Parameters are counted without the model, and exactly as the trainer makes them."""

from typing import Any

import jax
import pytest

from trainingjob_api.sharding import count_shards
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_operator.core.planner.parameters import count_parameters, list_parameter_tensors
from trainingjob_trainer.models.decoder import split_model

SMALL = {"vocab_size": 96, "embed_dim": 32, "mlp_dim": 48, "num_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "multi-head": SMALL | {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8},
    "grouped-query": SMALL | {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "heads that do not add up to the width": SMALL | {"num_heads": 3, "num_kv_heads": 1, "head_dim": 16},
    "tied": SMALL | {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "tie_embeddings": True},
}


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS.keys())
def test_the_trainer_makes_exactly_these_tensors(fields: dict[str, Any]) -> None:
    model = Model(**fields)
    made = split_model(model, Precision(), Memory())
    shapes = {name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(made.shapes)}
    is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
    axes = {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(made.axes, is_leaf=is_axes)}

    assert {leaf.name: leaf.shape for leaf in list_parameter_tensors(model)} == shapes
    assert {leaf.name: leaf.axes for leaf in list_parameter_tensors(model)} == axes


def name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part.key) for part in path)


def test_llama_3_8b_has_its_published_number_of_parameters() -> None:
    model = Model(
        vocab_size=128256, embed_dim=4096, mlp_dim=14336, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128
    )

    assert count_parameters(model) == 8_030_261_248


def test_a_shard_holds_its_part_of_what_the_mesh_divides_and_all_of_the_rest() -> None:
    model = Model(**MODELS["grouped-query"] | {"vocab_size": 97})
    sizes = {
        leaf.name: leaf.shard_size(count_shards({"data": 3, "fsdp": 2, "tensor": 2}))
        for leaf in list_parameter_tensors(model)
    }

    assert sizes["layers.mlp.gate"] == 3 * 32 // 2 * 48 // 2
    assert sizes["layers.attention.out"] == 3 * 4 // 2 * 8 * 32 // 2
    assert sizes["norm.scale"] == 32
    assert sizes["embedding"] == 97 * 32 // 2  # 97 rows are not split in two
