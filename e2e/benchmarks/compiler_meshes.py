"""Jobs for which every valid mesh is compiled: small enough for that, and each with other axes that divide it.

By these figures `strategy: auto` is judged: its choice must be the best of all by a roofline over what was compiled.
"""

from itertools import combinations
from typing import Any

from e2e.benchmarks.compiler_rows import job, model, training
from trainingjob_api.base import AXES, Axis
from trainingjob_api.job import TrainingJobSpec

type Degrees = dict[str, int]


def list_meshes(*axes: Axis) -> tuple[Degrees, ...]:
    """Return all ways to split four devices along these axes, which are in mesh order."""
    assert axes == tuple(axis for axis in AXES if axis in axes)
    return *({axis: 4} for axis in axes), *(dict.fromkeys(pair, 2) for pair in combinations(axes, 2))


TOPOLOGIES = {"v5e 2x2": ("tpu-v5e", "2x2"), "v6e 2x2": ("tpu-v6e", "2x2")}
MODELS: dict[str, tuple[dict[str, Any], tuple[Degrees, ...]]] = {
    "one key head, an odd length": (  # neither tensor nor contexts, nor stages of three layers
        {"model": model(512, 2048, 8, 1, 64, 8192, 3), "training": training(32, 511, 4)},
        ({"data": 4}, {"fsdp": 4}, {"data": 2, "fsdp": 2}),
    ),
    "an odd width": (  # parameters cannot be split over rows of devices
        {"model": model(513, 2048, 8, 4, 64, 8192, 3), "training": training(32, 512, 4)},
        ({"data": 4}, {"tensor": 4}, {"data": 2, "tensor": 2}),
    ),
    "one key head, an odd width": (  # two layers make two stages
        {"model": model(513, 2048, 8, 1, 64, 8192, 2), "training": training(32, 512, 4)},
        ({"data": 4}, {"data": 2, "stage": 2}),
    ),
    "dense, divided by all": (
        {"model": model(512, 2048, 8, 4, 64, 8192, 4), "training": training(32, 512, 4)},
        list_meshes("data", "stage", "fsdp", "context", "tensor"),
    ),
}
"""By name the sections of a job, and all meshes of four devices that are valid for it."""


def mesh_name(ici: Degrees) -> str:
    """Return a mesh as a key of the record."""
    return " ".join(f"{axis}={degree}" for axis, degree in ici.items())


def list_jobs() -> dict[str, dict[str, TrainingJobSpec]]:
    """Return for each model and topology the job on each of its meshes."""
    return {
        f"{name}, {where}": {mesh_name(ici): job(*slices, ici, **sections) for ici in meshes}
        for name, (sections, meshes) in MODELS.items()
        for where, slices in TOPOLOGIES.items()
    }
