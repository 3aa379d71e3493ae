"""Where mesh axes lie on the links of a slice. The trainer's tests hold the same against JAX itself."""

import pytest

from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.torus import place_axes

PLACES = {
    "whole dims": ("tpu-v5p", "4x4x4", {"fsdp": 16, "tensor": 4}, {"fsdp": "y4o z4o", "tensor": "x4o"}),
    "one axis over all dims": ("tpu-v5p", "4x4x8", {"fsdp": 128}, {"fsdp": "x4o y4o z8o"}),
    "parts of dims": ("tpu-v5p", "4x4x4", {"fsdp": 32, "tensor": 2}, {"fsdp": "x2/4 y4o z4o", "tensor": "x2/4"}),
    "lines where no link closes a dim": ("tpu-v5e", "4x8", {"fsdp": 8, "tensor": 4}, {"fsdp": "y8-", "tensor": "x4-"}),
    "the fast dim inside a chip": (
        "tpu-v7x",
        "4x4x4",
        {"fsdp": 64, "tensor": 2},
        {"fsdp": "x4o y4o z4o", "tensor": "core2o"},
    ),
    "the fast dim first": ("tpu-v7x", "4x4x4", {"fsdp": 16, "tensor": 8}, {"fsdp": "y4o z4o", "tensor": "x4o core2o"}),
    "a small slice is one ring": ("tpu-v5e", "2x4", {"fsdp": 4, "tensor": 2}, {"fsdp": "", "tensor": ""}),
    "sixteen chips and one axis are one ring": ("tpu-v6e", "4x4", {"fsdp": 16}, {"fsdp": ""}),
    "sixteen chips and two axes are not": (
        "tpu-v6e",
        "4x4",
        {"fsdp": 4, "tensor": 4},
        {"fsdp": "y4-", "tensor": "x4-"},
    ),
    "eight chips of three dims": ("tpu-v5p", "2x2x2", {"fsdp": 8}, {"fsdp": ""}),
    "two chips a dim": ("tpu-v4", "2x2x2", {"fsdp": 8}, {"fsdp": "x2- y2- z2-"}),
    "small slices of double chips": ("tpu-v7x", "2x2x1", {"fsdp": 8}, {"fsdp": ""}),
    "switches": ("nvidia-h100", "8", {"fsdp": 8}, {}),
    "nothing is split": ("tpu-v5e", "1x1", {}, {}),
}


@pytest.mark.parametrize(("accelerator", "topology", "ici", "want"), PLACES.values(), ids=PLACES.keys())
def test_places(accelerator: str, topology: str, ici: dict[str, int], want: dict[str, str]) -> None:
    shape = BUILTIN.find_shape(accelerator, topology)
    assert shape
    places = place_axes(shape, AxisDegrees(**ici))
    marks = {
        place.axis: " ".join(
            f"{one.dim}{one.size}" + (f"/{one.dim_size}" if one.size < one.dim_size else "o" if one.wraps else "-")
            for one in place.spans
        )
        for place in places
    }

    assert marks == want
