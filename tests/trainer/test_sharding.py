"""How parameters lie over the mesh: by the rules of the spec, as planned, and without a change of the curve."""

from functools import cache

import jax
import pytest

from tests.trainer.tiny import make_layout
from tests.trainer.training import ONE, Run, losses, spec_with
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees
from trainingjob_api.sharding import merge_rules
from trainingjob_operator.core.mesh import combine
from trainingjob_operator.core.parameters import list_leaves

EXPERTS = {"count": 4, "perToken": 2, "groupLength": 8}
EIGHT = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=2, expert=2, tensor=2), rows_per_shard=1, accumulation=2)
RULES: dict[str, dict[str, list[str]]] = {
    "as built in": {},
    "embedding split by rows alone": {"embed": ["context"], "vocab": ["tensor", "fsdp"]},
    "experts over fsdp too": {"experts": ["fsdp", "expert"], "expertEmbed": []},
    "nothing split": {name: [] for name in ("embed", "vocab", "heads", "kvHeads", "mlp", "experts", "expertEmbed")},
    "heads by fsdp, width by tensor": {
        "embed": ["tensor"],
        "vocab": [],
        "heads": ["fsdp"],
        "kvHeads": ["fsdp"],
        "mlp": [],
    },
}

each_table = pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())


def spec_of(rules: dict[str, list[str]]) -> TrainingJobSpec:
    return spec_with(model__experts=EXPERTS, parallelism__rules=rules)


@cache
def plain_losses() -> list[float]:
    return losses(spec_of({}), ONE)


@each_table
def test_rules_change_no_number(rules: dict[str, list[str]]) -> None:
    assert losses(spec_of(rules), EIGHT) == pytest.approx(plain_losses(), abs=2e-4)


@each_table
def test_the_planner_counts_the_shards_that_the_trainer_makes(rules: dict[str, list[str]]) -> None:
    spec = spec_of(rules)
    degrees, table = combine(EIGHT.ici, EIGHT.dcn), merge_rules(spec.parallelism.rules.written())
    state = Run(spec, EIGHT).state
    planned = {leaf.name: leaf.shard_size(degrees, table) for leaf in list_leaves(spec.model)}

    for tree in (state.params, state.opt[1].mu, state.opt[1].nu):
        held = {
            ".".join(part.key for part in path): leaf.addressable_shards[0].data.size
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        assert held == planned


def test_a_table_lies_as_its_rules_say() -> None:
    state = Run(spec_of(RULES["embedding split by rows alone"]), EIGHT).state

    assert state.params["embedding"].addressable_shards[0].data.shape == (272 // 4, 16)
