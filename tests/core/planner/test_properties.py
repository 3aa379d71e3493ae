"""What holds for every spec: a plan or problems, never an exception; and every layout is whole."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trainer.cases import takes_all_cases
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware import Accelerator
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

small = st.integers(1, 12)
degrees = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("data", "fsdp", "expert", "tensor"), st.sampled_from([-1, 0, 1, 2, 4, 3]))
)
topologies = st.sampled_from(
    [
        *(("cpu", topology) for topology in ("1x1", "2x2", "3x2", "2")),
        *(("tpu-v5e", "2x4"), ("tpu-v5p", "2x2x2"), ("tpu-v7x", "2x2x1"), ("nvidia-h100", "8"), ("nvidia-gb200", "36")),
        ("x", "1"),
    ]
)
counts = st.one_of(
    st.fixed_dictionaries({"count": small}), st.fixed_dictionaries({"min": small, "max": small}), st.just({})
)

experts = st.fixed_dictionaries(
    {"count": st.sampled_from([2, 4, 6]), "perToken": st.integers(1, 3)},
    optional={
        "capacityFactor": st.floats(0.1, 8),
        "groupLength": st.sampled_from([1, 4, 16, 20, 10_000]),
        "shared": st.integers(0, 2),
        "normalizeWeights": st.booleans(),
    },
)
rules = st.dictionaries(
    st.sampled_from(["embed", "vocab", "heads", "kvHeads", "mlp", "experts", "expertEmbed"]),
    st.lists(st.sampled_from(["fsdp", "expert", "context", "tensor"]), max_size=3),
    max_size=2,
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of the right shape: some satisfy every rule, most break one."""
    accelerator, topology = draw(topologies)
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    return {
        "slices": {"accelerator": accelerator, "topology": topology} | draw(counts),
        "parallelism": {"ici": draw(degrees), "dcn": draw(degrees), "rules": draw(rules)}
        if draw(st.booleans())
        else {},
        "model": {
            "vocabSize": draw(st.sampled_from([257, 258, 100])),
            "embedDim": draw(st.sampled_from([32, 48, 36, 1024])),
            "mlpDim": draw(st.sampled_from([64, 90])),
            "numLayers": draw(small),
            "numHeads": heads,
            "numKvHeads": draw(st.sampled_from([1, heads])),
            "headDim": draw(st.sampled_from([8, 9])),
            "tieEmbeddings": draw(st.booleans()),
            "experts": draw(st.one_of(st.none(), experts)),
        },
        "data": {"train": [{"name": "a", "path": "/data"}]},
        "training": {
            "steps": draw(small),
            "globalBatchSize": draw(st.integers(1, 500)),
            "sequenceLength": draw(st.sampled_from([16, 100_000])),
            "maxPerDeviceBatch": draw(st.one_of(st.none(), small)),
        },
        "optimizer": {"learningRate": 0.1},
        "memory": {"remat": draw(st.sampled_from(["none", "full"]))},
        "checkpoint": {"uri": "/shared/run"},
        "runtime": {"volumes": [{"name": "s", "claimName": "s", "mountPath": "/shared"}]},
    }


@pytest.mark.thorough
@given(specs())
@settings(max_examples=100, deadline=None)
def test_a_spec_has_a_plan_or_problems(raw: dict[str, Any]) -> None:
    assert_answered(raw)


@pytest.mark.slow
@given(specs())
@settings(max_examples=10_000 if takes_all_cases() else 2_000, deadline=None)
def test_thousands_of_specs_have_a_plan_or_problems(raw: dict[str, Any]) -> None:
    assert_answered(raw)


def assert_answered(raw: dict[str, Any]) -> None:
    checked = validate_job("tiny", raw)

    assert (checked.plan is None) == bool(checked.problems)
    if checked.plan:
        assert_whole(checked)


def assert_whole(checked: ValidationResult) -> None:
    plan, spec = checked.plan, checked.spec
    assert plan
    assert spec
    assert plan.allowed_sizes[0] == spec.slices.min_slices
    assert [size.num_slices for size in plan.sizes] == list(range(spec.slices.min_slices, spec.slices.max_slices + 1))
    for size in plan.sizes:
        assert bool(size.invalid_reason) == (size.layout is None)
        layout = size.layout
        if layout is None:
            continue
        inside, across = (math.prod(degree for _, degree in side.items()) for side in (layout.ici, layout.dcn))
        assert (inside, across) == (plan.shape.num_devices, layout.num_slices)
        rows = layout.rows_per_microbatch * layout.accumulation
        assert rows - layout.padding_rows == spec.training.global_batch_size
        assert layout.padding_rows < layout.batch_shards
        assert layout.rows_per_shard <= (spec.training.max_per_device_batch or layout.rows_per_shard)


@pytest.mark.thorough
@given(specs())
@settings(max_examples=50, deadline=None)
def test_the_plan_of_a_written_out_spec_is_the_same(raw: dict[str, Any]) -> None:
    checked = validate_job("tiny", raw)
    if not checked.plan:
        return
    layout = checked.plan.layout(checked.plan.allowed_sizes[0])
    resolved = checked.plan.spec.model_dump(by_alias=True, mode="json")
    resolved["parallelism"] |= {"ici": layout.ici.model_dump(), "dcn": layout.dcn.model_dump()}
    again = plan_job(TrainingJobSpec.model_validate(resolved))

    assert again.layout(layout.num_slices) == layout
    assert again.num_parameters == checked.plan.num_parameters


@given(specs(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_nearest_topology_is_one(raw: dict[str, Any], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    accelerator = data.draw(st.sampled_from(BUILTIN.accelerators))
    nearest = BUILTIN.nearest_topologies(accelerator, "x".join(map(str, dims)))[0].split()[0].strip('"')
    raw["slices"] |= {"accelerator": accelerator, "topology": nearest}

    assert "spec.slices.topology" not in {problem.path for problem in validate_job("tiny", raw).problems}


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="each"), pytest.param(5, id="every fifth")]
)
@pytest.mark.parametrize("row", BUILTIN.accelerators_by_name.values(), ids=BUILTIN.accelerators_by_name)
def test_every_topology_of_every_accelerator_is_planned(
    row: Accelerator, every: int, make_raw: Callable[..., Any]
) -> None:
    spread = {"parallelism": {"ici": {"data": -1}}, "slices.count": 1, "precision.compute": "bfloat16"}
    for one in row.slices[::every]:
        raw = make_raw(spread | {"slices.accelerator": row.name, "slices.topology": one.topology})
        checked = validate_job("tiny", raw)

        assert checked.problems == ()
        assert_whole(checked)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(), st.none()), inner, max_size=3),
        st.tuples(inner),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@given(specs(), junk, st.data())
@settings(max_examples=100, deadline=None)
def test_any_field_value_is_planned_or_reported_as_a_problem(
    raw: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    place: Any = raw
    while True:
        key = data.draw(st.sampled_from([*place, "more"])) if isinstance(place, dict) else 0
        inner = place.get(key) if isinstance(place, dict) else place[0]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = value
    checked = validate_job("tiny", raw)

    assert (checked.plan is None) == bool(checked.problems)
    assert all(str(problem).startswith(("spec", "metadata")) for problem in checked.problems)


@given(junk)
def test_any_spec_is_planned_or_reported_as_a_problem(value: Any) -> None:
    assert validate_job("tiny", value).problems
