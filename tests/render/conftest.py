"""Builders: a job, its plan and an installation, of which a test names only what it is about."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.planner.plan import Plan, SliceShape
from trainingjob_operator.render.render_settings import RenderSettings

type MakePlan = Callable[..., Plan]

CPU = SliceShape(
    accelerator="cpu",
    platform="cpu",
    topology="2x2",
    num_hosts=2,
    devices_per_host=2,
    resource="",
    node_labels=(),
    exclusive_topology="",
    memory_bytes=0,
)
TPU = SliceShape(
    accelerator="tpu-v5p",
    platform="tpu",
    topology="2x2x4",
    num_hosts=4,
    devices_per_host=4,
    resource="google.com/tpu",
    node_labels=(
        ("cloud.google.com/gke-tpu-accelerator", "tpu-v5p-slice"),
        ("cloud.google.com/gke-tpu-topology", "2x2x4"),
    ),
    exclusive_topology="cloud.google.com/gke-nodepool",
    memory_bytes=95 * 2**30,
    taints=("google.com/tpu",),
)
GPU = SliceShape(
    accelerator="nvidia-gb200",
    platform="cuda",
    topology="8",
    num_hosts=2,
    devices_per_host=4,
    resource="nvidia.com/gpu",
    node_labels=(("cloud.google.com/gke-accelerator", "nvidia-gb200"),),
    exclusive_topology="cloud.google.com/gke-nodepool",
    memory_bytes=185 * 2**30,
    taints=("nvidia.com/gpu", "kubernetes.io/arch"),
)
SPEC: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "2x2", "count": 2},
    "model": {"vocabSize": 257, "embedDim": 32, "mlpDim": 64, "numLayers": 2}
    | {"numHeads": 4, "numKvHeads": 2, "headDim": 8},
    "data": {"train": [{"name": "text", "path": "python:json", "pattern": "*.py"}]},
    "training": {"steps": 10, "globalBatchSize": 8, "sequenceLength": 16},
    "optimizer": {"learningRate": 0.001},
    "checkpoint": {"uri": "/shared/run"},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}


def make_plan(sections: Mapping[str, Any], shape: SliceShape = CPU) -> Plan:
    """Return the plan of a small job with some sections of its spec replaced."""
    spec = TrainingJobSpec.model_validate(SPEC | dict(sections))
    return Plan(spec=spec, shape=shape, num_parameters=0, sizes=())


@pytest.fixture
def spec() -> dict[str, Any]:
    """Return the spec of a small job."""
    return dict(SPEC)


@pytest.fixture
def job() -> JobIdentity:
    return JobIdentity(name="tiny", namespace="research", uid="11111111-2222-3333-4444-555555555555")


@pytest.fixture
def settings() -> RenderSettings:
    return RenderSettings(
        trainer_image="registry.example/trainer:1.0",
        rendezvous_url="https://trainingjob-operator.trainingjob-system.svc:8443",
        ca_pem="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    )


@pytest.fixture
def cpu_plan() -> MakePlan:
    """Return a builder of plans on CPU; each argument replaces a section of the spec."""
    return lambda **sections: make_plan(sections, CPU)


@pytest.fixture
def tpu_plan() -> MakePlan:
    """Return a builder of plans on TPU; each argument replaces a section of the spec."""
    return lambda **sections: make_plan(sections, TPU)


@pytest.fixture
def gpu_plan() -> MakePlan:
    """Return a builder of plans on GPUs; each argument replaces a section of the spec."""
    return lambda **sections: make_plan(sections, GPU)


@pytest.fixture
def two_device_plan() -> MakePlan:
    """Return a builder of plans on chips that are two devices each."""
    return lambda **sections: make_plan(sections, replace(TPU, devices_per_host=8, devices_per_chip=2))
