"""The memory of text samples: the cache of a device at each size."""

from collections.abc import Callable
from typing import Any

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.memory import count_sample_bytes
from trainingjob_operator.core.planner.plan import SizePlan

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]
EVALUATION = [{"name": "a", "path": "/a", "everySteps": 10, "samples": [{"prompt": "abc", "maxTokens": 4}]}]


def make_size(**ici: int) -> SizePlan:
    layout = Layout(
        num_slices=1,
        hosts_per_slice=1,
        devices_per_host=2,
        ici=AxisDegrees(**ici),
        dcn=AxisDegrees(),
        rows_per_shard=1,
        accumulation=1,
        padding_rows=0,
    )
    return SizePlan(1, layout, None)


def test_the_cache_is_that_of_the_mesh(make_spec: MakeSpec) -> None:
    spec = make_spec({"evaluation": EVALUATION})
    heads = spec.model.heads
    whole = 8 * spec.model.num_layers * 2 * heads.num_kv_heads * heads.head_dim * 2

    numbers = {"float32": 2, "bfloat16": 1}[spec.precision.compute]
    assert count_sample_bytes(spec, make_size()) == whole * numbers
    assert count_sample_bytes(spec, make_size(tensor=2)) == whole * numbers // 2


def test_without_samples_or_mesh_there_is_no_cache(make_spec: MakeSpec) -> None:
    assert count_sample_bytes(make_spec({}), make_size()) == 0
    assert count_sample_bytes(make_spec({"evaluation": EVALUATION}), SizePlan(1, None, None)) == 0
