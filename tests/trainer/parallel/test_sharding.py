"""How parameters lie over the mesh: by the rules of the spec, as planned, and without a change of the curve."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, losses, save_and_restore, spec_with
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sharding import count_shards, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees

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


def spec_of(rules: dict[str, list[str]]) -> TrainingJobSpec:
    return spec_with(model__experts=EXPERTS, parallelism__rules=rules)


@cache
def plain_losses() -> list[float]:
    return losses(spec_of({}), ONE)


@each("rules", RULES)
def test_rules_change_no_number(rules: dict[str, list[str]]) -> None:
    assert losses(spec_of(rules), EIGHT) == pytest.approx(plain_losses(), abs=2e-4)


@each("rules", RULES, "experts over fsdp too")
def test_the_planner_counts_the_shards_that_the_trainer_makes(rules: dict[str, list[str]]) -> None:
    spec = spec_of(rules)
    degrees, table = combine_degrees(EIGHT.ici, EIGHT.dcn), merge_rules(spec.parallelism.rules.overrides())
    state = Run(spec, EIGHT).state
    planned = {leaf.name: leaf.shard_size(count_shards(degrees, table)) for leaf in resolve(spec.model).tensors}

    for tree in (state.params, state.opt[1].mu, state.opt[1].nu):
        assert held(tree) == planned


def held(tree: Any) -> dict[str, int]:
    """Return how many numbers of each tensor a device holds."""
    return {
        ".".join(part.key for part in path): leaf.addressable_shards[0].data.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def test_embedding_table_is_sharded_by_its_rules() -> None:
    state = Run(spec_of(RULES["embedding split by rows alone"]), EIGHT).state

    assert state.params["embedding"].addressable_shards[0].data.shape == (272 // 4, 16)


SPREAD: dict[str, Layout] = {
    "data 4, tensor 2": make_layout(devices_per_host=8, ici=AxisDegrees(data=4, tensor=2), rows_per_shard=2),
    "data 2 over slices, fsdp 2, expert 2": make_layout(
        num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=2, expert=2), dcn=AxisDegrees(data=2), rows_per_shard=1
    ),
    "data 3, padding": make_layout(devices_per_host=3, ici=AxisDegrees(data=3), rows_per_shard=3, padding_rows=1),
    "data 2, 2 stages, fsdp 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(data=2, stage=2, fsdp=2), rows_per_shard=1, microbatches=2
    ),
}
SPREAD_SPEC = spec_with(model__experts=EXPERTS, parallelism__shardOptimizerOverData=True)


@each("layout", SPREAD)
def test_an_optimizer_that_is_split_over_data_changes_no_number(layout: Layout) -> None:
    assert losses(SPREAD_SPEC, layout) == pytest.approx(plain_losses(), abs=2e-4)


@each("layout", SPREAD)
def test_planner_counts_the_optimizer_state_sharded_over_data(layout: Layout) -> None:
    degrees = combine_degrees(layout.ici, layout.dcn)
    ways, data = count_shards(degrees), degrees["data"]
    run = Run(SPREAD_SPEC, layout)
    list(run.train(1))
    leaves = {leaf.name: leaf for leaf in resolve(SPREAD_SPEC.model).tensors}

    assert held(run.state.params) == {name: leaf.shard_size(ways) for name, leaf in leaves.items()}
    for moments in (run.state.opt[1].mu, run.state.opt[1].nu):
        assert held(moments) == {name: leaf.data_sharded_size(ways, data) for name, leaf in leaves.items()}


@pytest.mark.thorough
def test_optimizer_sharded_over_data_has_a_part_of_each_tensor() -> None:
    state = Run(SPREAD_SPEC, SPREAD["data 4, tensor 2"]).state
    params, moments = held(state.params), held(state.opt[1].mu)

    assert {name: params[name] / moments[name] for name in params} == dict.fromkeys(params, 4)


@pytest.mark.slow
def test_state_continues_with_another_split_over_data(tmp_path: Path) -> None:
    saving, going_on = Run(SPREAD_SPEC, SPREAD["data 4, tensor 2"]), Run(SPREAD_SPEC, SPREAD["data 3, padding"])
    list(saving.train(3))

    going_on.state = save_and_restore(tmp_path, saving.state, going_on.steps.state_shapes)

    seen = [float(one.loss) for one in going_on.train(3)]
    assert seen == pytest.approx(plain_losses()[3:], abs=2e-4)
