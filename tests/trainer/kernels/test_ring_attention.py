"""Attention in a ring computes what plain attention computes on one device, and the same gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.support.trainer.cases import each
from tests.support.trainer.tiny import make_layout
from tests.trainer.kernels.test_attention_kernels import (
    KEY_WIDTH,
    VARIANTS,
    Inputs,
    differentiate,
    documents_of,
    draw,
    kernel_of,
    positions_of,
)
from trainingjob_api.network.attention_blocks import CausalScope
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.kernels.attention_kernels import attention
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.parallel.token_order import to_mesh_order, to_sequence_order

SHARDS = 4
MESH = AxisDegrees(context=SHARDS, tensor=2)


def test_the_order_of_a_mesh_is_undone() -> None:
    tokens = jnp.arange(24).reshape(2, 12)

    ordered = to_mesh_order(tokens, "ring", 3)

    assert ordered[0].tolist() == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    assert to_sequence_order(ordered, "ring", 3).tolist() == tokens.tolist()
    assert to_mesh_order(tokens, "gather", 3) is tokens


def pass_keys(variant: dict[str, Any], inputs: Inputs) -> jax.Array:
    """Return attention in a ring, with tokens in the order of the sequence."""

    def reorder(array: jax.Array, to_order: Any = to_mesh_order) -> jax.Array:
        moved: jax.Array = jnp.moveaxis(to_order(jnp.moveaxis(array, 1, -1), "ring", SHARDS), -1, 1)
        return moved

    given = {name: array if name == "sinks" else reorder(array) for name, array in inputs.items()}
    documents_BL, positions_BL = documents_of(variant), positions_of(variant)
    return reorder(
        attention(
            *(given[name] for name in ("q", "k", "v")),
            kernel="ring",
            scope=variant.get("scope", CausalScope()),
            scale=KEY_WIDTH**-0.5,
            segments_BL=None if documents_BL is None else reorder(documents_BL),
            positions_BL=None if positions_BL is None else reorder(positions_BL),
            soft_cap=variant.get("soft_cap"),
            sinks_H=given.get("sinks"),
        ),
        to_sequence_order,
    )


@pytest.mark.thorough
@each(
    "variant",
    {name: variant for name, variant in VARIANTS.items() if variant.get("groups") != 1},  # `tensor` shards them
    "window and sinks",
    "chunks in documents, capped, sinks",
)
def test_a_ring_computes_the_same_as_the_plain_kernel(variant: dict[str, Any]) -> None:
    inputs, plain = draw(**variant), kernel_of("plain", variant)
    mesh = build_mesh(jax.devices(), make_layout(devices_per_host=8, ici=MESH))
    everywhere = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec()))

    def run(inputs: Inputs) -> jax.Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return pass_keys(variant, inputs)

    np.testing.assert_allclose(jax.jit(run)(everywhere), plain(inputs), atol=1e-5)
    for found, want in zip(
        jax.tree.leaves(differentiate(run, everywhere)), jax.tree.leaves(differentiate(plain, inputs)), strict=True
    ):
        assert np.linalg.norm(found - want) < 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize(("window", "num_sent"), [(None, 3), (20, 2), (1, 0)])
def test_keys_are_sent_only_where_a_query_sees_them(window: int | None, num_sent: int) -> None:
    variant = {"scope": CausalScope(window=window)}
    mesh = build_mesh(jax.devices(), make_layout(devices_per_host=8, ici=MESH))

    def run(inputs: Inputs) -> jax.Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return pass_keys(variant, inputs)

    assert str(jax.make_jaxpr(run)(draw())).count("ppermute[") == num_sent
