"""The trainer creates exactly the tensors that the network declares: names, shapes, axes and numbers."""

from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

from trainingjob_api.network.attention import Attention
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.decoder import split_model

EXAMPLES = Path(__file__).parent.parent.parent.parent / "crds/examples"
SMALL: dict[str, Any] = {"vocab_size": 96, "embed_dim": 32, "mlp_dim": 48, "num_layers": 3}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "multi-head": {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8},
    "grouped-query": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "heads that do not add up to the width": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 16},
    "tied": {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "tie_embeddings": True},
    "query-key norm": {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "attention": Attention(query_key_norm="perHead"),
    },
    "experts": {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "experts": Experts(count=4, per_token=2)},
    "shared experts": {
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 8,
        "experts": Experts(count=4, per_token=2, shared=2),
    },
}
MODELS = {
    **{name: Model(**SMALL | fields) for name, fields in SMALL_MODELS.items()},
    **{
        path.stem: parsed.model
        for path in sorted(EXAMPLES.glob("*.yaml"))
        if "program" not in (spec := yaml.safe_load(path.read_text())["spec"]) and (parsed := parse_spec(spec).spec)
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_the_trainer_makes_exactly_these_tensors(model: Model) -> None:
    made = split_model(resolve(model), Precision(), Memory(), "cpu")
    shapes = {name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(made.shapes)}
    is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
    axes = {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(made.axes, is_leaf=is_axes)}
    network = resolve(model)

    assert shapes == {tensor.name: tensor.shape for tensor in network.tensors}
    assert axes == {tensor.name: tensor.axes for tensor in network.tensors}
    assert sum(leaf.size for leaf in jax.tree.leaves(made.shapes)) == network.num_parameters


def name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part.key) for part in path)
