"""A tiny job: its spec, its layouts and its worlds."""

from pathlib import Path
from typing import Any

from e2e.cluster.run_program import free_port
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import BatchLayout, JobIdentity, Layout, Member, Rollback, RunConfig, Span, World

UID = "0d4cf5e1-7d0e-4a51-9c0b-6f5ff0e5c3aa"
SECRET = "the tests' own"  # it keeps nothing from anybody


def make_layout(**changes: Any) -> Layout:
    """Return one slice of one host with two devices, unless changed."""
    values: dict[str, Any] = {
        "num_slices": 1,
        "hosts_per_slice": 1,
        "devices_per_host": 2,
        "ici": AxisDegrees(fsdp=2),
        "dcn": AxisDegrees(),
        "rows_per_shard": 2,
        "accumulation": 1,
        "padding_rows": 0,
    }
    return Layout(**values | changes)


SIZES = (
    make_layout(),
    make_layout(num_slices=2, dcn=AxisDegrees(data=2), rows_per_shard=1),
)

GROWING_BATCH: dict[str, Any] = {
    "training__batchSchedule": [{"fromStep": 6, "globalBatchSize": 8}],
    "layouts": (
        make_layout(
            accumulation=2,
            smaller_batches=(BatchLayout(global_batch_size=4, rows_per_shard=2, accumulation=1, padding_rows=0),),
        ),
        make_layout(
            num_slices=2,
            dcn=AxisDegrees(data=2),
            smaller_batches=(BatchLayout(global_batch_size=4, rows_per_shard=1, accumulation=1, padding_rows=0),),
        ),
    ),
}
"""Changes of the tiny job: from step 6 on, its batches are twice as large."""


def make_spec(uri: Path, text: Path, **changes: Any) -> dict[str, Any]:
    """Return the spec of a tiny job as a dict; a change's key is a path with `__` between its parts."""
    spec: dict[str, Any] = {
        "slices": {"accelerator": "cpu", "topology": "1x2", "min": 1, "max": 2},
        "model": {
            "vocabSize": 272,
            "embedDim": 16,
            "mlpDim": 32,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 2,
            "headDim": 8,
        },
        "data": {"train": [{"name": "text", "path": str(text)}]},
        "training": {"steps": 6, "globalBatchSize": 4, "sequenceLength": 16},
        "optimizer": {"learningRate": 0.01},
        "schedule": {"type": "constant"},
        "precision": {"compute": "float32"},
        "checkpoint": {"uri": str(uri), "save": {"everySteps": 2}},
        "metrics": {"everySteps": 1},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return spec


def make_config(
    spec: dict[str, Any], layouts: tuple[Layout, ...] = SIZES, uid: str = UID, platform: str = "cpu"
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "job": JobIdentity(name="tiny", namespace="tests", uid=uid),
            "spec": spec,
            "accelerator_platform": platform,
            "layouts": layouts,
        }
    )


def make_world(
    generation: int,
    num_hosts: int,
    lineage: tuple[Span, ...] = (),
    uid: str = UID,
    rollbacks: tuple[Rollback, ...] = (),
) -> World:
    """Return a world of slices of one host each."""
    members = tuple(
        Member(process=host, slice=host, host=0, pod=f"pod-{host}", pod_uid=f"uid-{host}", address="127.0.0.1")
        for host in range(num_hosts)
    )
    coordinator = f"127.0.0.1:{free_port()}"
    return World(
        generation=generation,
        job_uid=uid,
        coordinator=coordinator,
        members=members,
        lineage=lineage,
        rollbacks=rollbacks,
    )
