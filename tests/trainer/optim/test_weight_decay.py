"""Weight decay goes by the class of a tensor, whatever its name."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.network.tensor import DecayClass
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import WeightDecay
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.decoder import SplitModel
from trainingjob_trainer.optim.factory import decay_mask

SHAPE = {"vocab_size": 64, "embed_dim": 16, "mlp_dim": 24, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
NETWORK = resolve(Model(**SHAPE, head_dim=4, experts=Experts(count=4, per_token=2, shared=1)))


def undecayed(network: Network, *exclude: DecayClass) -> set[str]:
    params = SplitModel(network, Precision(), Memory()).shapes
    mask = decay_mask(
        network, exclude or WeightDecay().exclude, jax.tree.map(lambda shape: jnp.zeros(shape.shape), params)
    )
    return {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, decays in jax.tree_util.tree_leaves_with_path(mask)
        if not decays
    }


def test_only_norms_have_no_weight_decay() -> None:
    assert undecayed(NETWORK) == {"layers.attention_norm.scale", "layers.mlp_norm.scale", "norm.scale"}


def test_excluded_kinds_alone_have_no_weight_decay() -> None:
    tables = undecayed(NETWORK, DecayClass.EMBEDDING, DecayClass.ROUTER)
    experts = undecayed(NETWORK, DecayClass.EXPERT)

    assert tables == {"embedding", "layers.mlp.router"}
    assert experts == {"layers.mlp.gate", "layers.mlp.up", "layers.mlp.down"}


def test_the_name_of_a_group_decides_nothing() -> None:
    (group,) = NETWORK.groups

    assert undecayed(replace(NETWORK, groups=(replace(group, name="scale"),))) == {
        "scale.attention_norm.scale",
        "scale.mlp_norm.scale",
        "norm.scale",
    }
