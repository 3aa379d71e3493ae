"""Layouts of a tensor in files and in the network: the elements that a copy moves, and the reversed copy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainingjob_api.huggingface.layout import Copy, Dims, Region, layout_shape, parse_layouts, plan_copy, whole
from trainingjob_trainer.huggingface.block_copy import run_copy, to_slices

SIZES = {"d": 4, "h": 3, "k": 2, "f": 5, "e": 2, "nope": 2, "rope": 3, "value": 4}


def move(copy: Copy, source: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    target = np.full(shape, -1)
    run_copy(copy, source[to_slices(copy.region)], target)
    return target


def convert(layouts: str, source: np.ndarray) -> np.ndarray:
    left, right = parse_layouts(layouts)
    shape = layout_shape(right, SIZES)
    copy = plan_copy(left, right, SIZES, whole(shape))
    assert copy
    return move(copy, source, shape)


def arange(*shape: int) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


def test_a_dim_of_several_factors_becomes_several_dims() -> None:
    found = convert("(h k) d -> d h k", arange(6, 4))

    assert np.array_equal(found, arange(6, 4).T.reshape(4, 3, 2))


def test_a_third_of_a_dim_is_one_of_three_tensors() -> None:
    found = convert("d (1/3 h k) -> d h k", arange(4, 18))

    assert np.array_equal(found, arange(4, 18)[:, 6:12].reshape(4, 3, 2))


def test_every_second_element_is_one_of_two_tensors() -> None:
    found = convert("e d (f 1/2) -> e d f", arange(2, 4, 10))

    assert np.array_equal(found, arange(2, 4, 10)[:, :, 1::2])


def test_a_segment_is_the_axis_that_the_other_layout_has() -> None:
    rows = arange(3 * (2 + 4), 4)

    keys, values = convert("(h nope+value) d -> d h nope", rows), convert("(h nope+value) d -> d h value", rows)

    whole_heads = rows.T.reshape(4, 3, 6)
    assert np.array_equal(keys, whole_heads[:, :, :2])
    assert np.array_equal(values, whole_heads[:, :, 2:])


def test_a_copy_into_a_part_leaves_the_other_parts() -> None:
    found = convert("d h k -> d (1/3 h k)", arange(4, 3, 2))

    assert np.array_equal(found[:, 6:12], arange(4, 6))
    assert (np.delete(found, range(6, 12), axis=1) == -1).all()


def test_a_region_reads_only_the_rows_that_it_needs() -> None:
    left, right = parse_layouts("(h k) d -> d h k")

    copy = plan_copy(left, right, SIZES, ((1, 3), (2, 3), (0, 2)))

    assert copy
    assert copy.region == ((4, 6), (1, 3))


NOTHING: dict[str, tuple[str, Region]] = {
    "of another index": ("d -> 1/2 d", ((0, 1), (0, 4))),
    "of another segment": ("rope -> nope+rope", ((0, 2),)),
}


@pytest.mark.parametrize(("layouts", "region"), NOTHING.values(), ids=NOTHING)
def test_a_region_has_nothing_of_another_tensor(layouts: str, region: Region) -> None:
    left, right = parse_layouts(layouts)

    assert plan_copy(left, right, SIZES, region) is None


def test_a_region_does_not_cut_a_dim_of_several_factors() -> None:
    left, right = parse_layouts("h k -> (h k)")

    with pytest.raises(ValueError, match="must not be split"):
        plan_copy(left, right, SIZES, ((0, 2),))


@pytest.mark.parametrize("layouts", ["d h -> d k", "d d -> d", "d -> d d", "nope+rope -> value"])
def test_both_layouts_have_the_same_axes_once(layouts: str) -> None:
    with pytest.raises(ValueError, match="must have the same axes, each once"):
        parse_layouts(layouts)


LAYOUTS = (
    "v d -> v d",
    "v d -> d v",
    "(h k) d -> d h k",
    "d (h k) -> h k d",
    "d (2/3 h k) -> d h k",
    "e d (f 0/2) -> e d f",
    "e d (0/2 f) -> e d f",
    "e f d -> e d f",
    "(h nope+value) d -> d h value",
    "nope+rope d -> d rope",
    "rope d -> d nope+rope",
    "(h nope+rope) d -> d h nope+rope",
)
SMALL = st.fixed_dictionaries(
    {name: st.integers(1, 4) for name in ("v", "d", "h", "k", "f", "e", "nope", "rope", "value")}
)


def cut(dims: Dims, shape: tuple[int, ...], data: st.DataObject) -> Region:
    """Return a region that cuts dims of one factor."""
    region = []
    for factors, size in zip(dims, shape, strict=True):
        start = data.draw(st.integers(0, size - 1)) if len(factors) == 1 else 0
        stop = data.draw(st.integers(start + 1, size)) if len(factors) == 1 else size
        region.append((start, stop))
    return tuple(region)


@settings(deadline=None)
@given(st.sampled_from(LAYOUTS), SMALL, st.data())
def test_a_region_is_that_of_the_whole_copy(layouts: str, sizes: dict[str, int], data: st.DataObject) -> None:
    left, right = parse_layouts(layouts)
    source, shape = arange(*layout_shape(left, sizes)), layout_shape(right, sizes)
    everything = plan_copy(left, right, sizes, whole(shape))
    assert everything
    region = cut(right, shape, data)

    copy = plan_copy(left, right, sizes, region)

    want = move(everything, source, shape)[to_slices(region)]
    assert np.array_equal(move(copy, source, want.shape) if copy else np.full(want.shape, -1), want)


@settings(deadline=None)
@given(st.sampled_from(LAYOUTS), SMALL)
def test_the_reversed_copy_is_the_inverse(layouts: str, sizes: dict[str, int]) -> None:
    left, right = parse_layouts(layouts)
    here, there = layout_shape(left, sizes), layout_shape(right, sizes)
    forward, back = plan_copy(left, right, sizes, whole(there)), plan_copy(right, left, sizes, whole(here))
    assert forward
    assert back
    source = arange(*here)

    returned = move(back, move(forward, source, there), here)

    moved = returned >= 0
    assert np.array_equal(returned[moved], source[moved])
    assert moved.sum() == (move(forward, source, there) >= 0).sum()
