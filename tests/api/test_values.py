"""The small values of the API: spans of time, problems, slices, layouts, worlds."""

import pytest
from pydantic import ValidationError

from trainingjob_api.base import AXES, seconds
from trainingjob_api.problem import Problem, in_order, summarise
from trainingjob_api.sharding import RULES, count_shards, find_zero1_dim, shards_of_dim
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.slices import Slices
from trainingjob_api.world import BatchLayout, Layout, Member, RunConfig, World

SPANS = {"90s": 90, "5m": 300, "1h30m": 5400, "2h0m1s": 7201, "0s": 0}


@pytest.mark.parametrize(("text", "want"), SPANS.items(), ids=SPANS.keys())
def test_seconds(text: str, want: int) -> None:
    assert seconds(text) == want


@pytest.mark.parametrize("text", ["", "5", "5d", "1m1h", "-1s"])
def test_other_text_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as `90s`, `5m` or `1h30m`"):
        seconds(text)


def test_a_value_is_closed_and_frozen() -> None:
    with pytest.raises(ValidationError):
        AxisDegrees(model=2)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        AxisDegrees().data = 2  # type: ignore[misc]


NEAREST = {
    (): "spec.a: is odd.",
    ("2",): "spec.a: is odd. Nearest legal value: 2.",
    ("2", "4"): "spec.a: is odd. Nearest legal values: 2, 4.",
}


@pytest.mark.parametrize(("nearest", "want"), NEAREST.items(), ids=["none", "one", "two"])
def test_a_problem_is_one_line(nearest: tuple[str, ...], want: str) -> None:
    assert str(Problem("spec.a", 3, "is odd.", nearest)) == want


def test_problems_are_deduplicated_and_sorted() -> None:
    first, second, third = Problem("a", 1, "x"), Problem("a", 1, "y"), Problem("b", 1, "x")

    assert in_order([third, second, first, Problem("a", 2, "x"), third]) == [Problem("a", 2, "x"), second, third]


def test_a_summary_counts_its_problems() -> None:
    problem = Problem("spec.a", 3, "is odd.")

    assert summarise("tiny", [problem]) == 'TrainingJob "tiny" has 1 problem:\n  spec.a: is odd.'
    assert summarise("tiny", [problem, problem]).startswith('TrainingJob "tiny" has 2 problems:\n')


COUNTS = {
    "fixed": ({"count": 3}, (3, 3)),
    "elastic": ({"min": 2, "max": 5}, (2, 5)),
    "only min": ({"min": 2}, (2, 2)),
    "only max": ({"max": 5}, (5, 5)),
    "none": ({}, (1, 1)),
}


@pytest.mark.parametrize(("fields", "want"), COUNTS.values(), ids=COUNTS.keys())
def test_fewest_and_most_slices(fields: dict[str, int], want: tuple[int, int]) -> None:
    slices = Slices(accelerator="cpu", topology="1x1", **fields)

    assert (slices.min_slices, slices.max_slices) == want


def test_degrees_are_listed_in_mesh_order() -> None:
    assert tuple(axis for axis, _ in AxisDegrees().items()) == AXES


def test_a_layout_has_the_numbers_of_each_batch_size() -> None:
    small = BatchLayout(global_batch_size=60, rows_per_shard=1, accumulation=3, microbatches=2, padding_rows=5)
    both = LAYOUT.model_copy(update={"smaller_batches": (small,)})

    assert both.for_batch(720) == both
    assert both.for_batch(60) == LAYOUT.model_copy(
        update={"rows_per_shard": 1, "accumulation": 3, "microbatches": 2, "padding_rows": 5}
    )


SPLITS = {
    "by one axis": ("embed", 8, 4),
    "by two axes": ("batch", 24, 12),
    "by none": ("norm", 8, 1),
    "not where it does not divide": ("embed", 6, 1),
}


@pytest.mark.parametrize(("axis", "size", "want"), SPLITS.values(), ids=SPLITS.keys())
def test_split_ways(axis: str, size: int, want: int) -> None:
    assert shards_of_dim(axis, size, count_shards({"data": 3, "fsdp": 4, "tensor": 2})) == want


SPREADS = {
    "the first that divides": (("layers", "embed"), (8, 16), 0),
    "beside its own axes": (("layers", "embed"), (2, 16), 1),
    "not where these leave too little": (("layers", "embed"), (2, 4), None),
}


@pytest.mark.parametrize(("axes", "shape", "want"), SPREADS.values(), ids=SPREADS.keys())
def test_a_dim_is_found_to_be_split_over_data_too(
    axes: tuple[str, ...], shape: tuple[int, ...], want: int | None
) -> None:
    assert find_zero1_dim(axes, shape, count_shards({"data": 4, "fsdp": 4}), 4) == want


def test_tensors_are_split_by_axes_of_the_mesh() -> None:
    assert {axis for axes in RULES.values() for axis in axes} == set(AXES)


LAYOUT = Layout(
    num_slices=3,
    hosts_per_slice=2,
    devices_per_host=4,
    ici=AxisDegrees(data=2, fsdp=4),
    dcn=AxisDegrees(data=3),
    rows_per_shard=5,
    accumulation=2,
    padding_rows=0,
)


def test_a_layout_counts_its_hosts_devices_and_rows() -> None:
    assert (LAYOUT.num_hosts, LAYOUT.num_devices, LAYOUT.batch_shards, LAYOUT.rows_per_microbatch) == (6, 24, 24, 120)


def test_a_run_config_finds_a_layout_by_its_size() -> None:
    config = RunConfig.model_construct(layouts=(LAYOUT,))

    assert config.layout(3) is LAYOUT
    with pytest.raises(KeyError, match="no layout for 2 slices"):
        config.layout(2)


def test_world_finds_its_slices_and_members() -> None:
    members = tuple(
        Member(process=process, slice=number, host=0, pod=f"p{process}", pod_uid=f"u{process}", address="10.0.0.1")
        for process, number in enumerate((2, 0))
    )
    world = World(generation=1, job_uid="j", coordinator="10.0.0.1:1", members=members)

    assert world.slices == (0, 2)
    assert world.find_member("u1") == members[1]
    assert world.find_member("u9") is None
