"""Jobs, plans, pods and reports for tests: valid where a test does not care, plain to change where it does."""

from datetime import UTC, datetime
from typing import Any

from trainingjob_api.protocol import Failure, FailureReason, HostReport
from trainingjob_api.spec.job import API_VERSION, KIND, TrainingJobSpec
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import Layout
from trainingjob_operator.core.names import (
    HOST_LABEL,
    JOB_INDEX_LABEL,
    QUEUE_LABEL,
    SLICE_OFFSET_LABEL,
    UID_LABEL,
    base_jobset,
    slice_jobset,
)
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape
from trainingjob_operator.core.stored_status import write_status
from trainingjob_operator.core.times import format_time

type Manifest = dict[str, Any]

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
NAME = "demo"
NAMESPACE = "research"
KEY = (NAMESPACE, UID)


def spec_manifest(**sections: Any) -> Manifest:
    """Return a small valid spec on CPU: 1 to 2 slices of 2 hosts, 100 steps."""
    spec = {
        "slices": {"accelerator": "cpu", "topology": "2x2", "min": 1, "max": 2},
        "model": {
            "vocabSize": 257,
            "embedDim": 32,
            "mlpDim": 64,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 4,
            "headDim": 8,
        },
        "data": {"train": [{"name": "text", "path": "python:"}]},
        "training": {"steps": 100, "globalBatchSize": 16, "sequenceLength": 32},
        "optimizer": {"learningRate": 0.001},
        "checkpoint": {"uri": "/shared/runs/demo"},
        "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
    }
    return {**spec, **sections}


def make_plan(fewest: int = 1, most: int = 2, hosts: int = 2, allowed: tuple[int, ...] = (), **sections: Any) -> Plan:
    """Return a plan of slices with a few hosts of two devices each; every size is allowed by default."""
    slices = {"accelerator": "cpu", "topology": f"{hosts}x2", "min": fewest, "max": most}
    sizes = range(fewest, most + 1)
    return Plan(
        spec=TrainingJobSpec.model_validate(spec_manifest(slices=slices, **sections)),
        shape=SliceShape("cpu", "cpu", f"{hosts}x2", hosts, 2, "", (), "", 0),
        num_parameters=12345,
        sizes=tuple(_size(number, hosts, is_valid=not allowed or number in allowed) for number in sizes),
    )


def _size(num_slices: int, hosts: int, *, is_valid: bool) -> SizePlan:
    if not is_valid:
        return SizePlan(num_slices, None, None, "does not divide")
    layout = Layout.model_validate(
        {
            "numSlices": num_slices,
            "hostsPerSlice": hosts,
            "devicesPerHost": 2,
            "ici": {"fsdp": hosts * 2},
            "dcn": {"data": num_slices},
            "rowsPerShard": 1,
            "accumulation": 1,
            "paddingRows": 0,
        }
    )
    return SizePlan(num_slices, layout, None)


def job_manifest(plan: Plan, status: TrainingJobStatus | None = None) -> Manifest:
    """Return the TrainingJob of a plan."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1, "resourceVersion": "1"},
        "spec": plan.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        "status": write_status(status or TrainingJobStatus()),
    }


def ready_node(name: str, *, ready: bool = True, since: datetime | None = None) -> Manifest:
    """Return a node."""
    condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
    if since is not None:
        condition["lastTransitionTime"] = format_time(since)
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def job_uid(slice_number: int) -> str:
    """Return the UID of a slice's child Job."""
    return f"job-{slice_number}"


def jobset_name(plan: Plan, slice_number: int) -> str:
    """Return the name of the JobSet that holds a slice."""
    is_elastic = slice_number >= plan.num_base_slices
    return slice_jobset(NAME, UID, slice_number) if is_elastic else base_jobset(NAME, UID)


def pod_manifest(plan: Plan, slice_number: int, host: int, uid: str = "", **changes: Any) -> Manifest:
    """Return a pod that runs on its own node; `changes` replace parts of its status."""
    offset = slice_number if slice_number >= plan.num_base_slices else 0
    jobset = jobset_name(plan, slice_number)
    uid = uid or f"pod-{slice_number}-{host}"
    return {
        "metadata": {
            "name": f"{jobset}-slice-{slice_number - offset}-{host}-{uid[-5:]}",
            "namespace": NAMESPACE,
            "uid": uid,
            "creationTimestamp": "2026-11-21T11:59:00Z",
            "labels": {
                UID_LABEL: UID,
                SLICE_OFFSET_LABEL: str(offset),
                JOB_INDEX_LABEL: str(slice_number - offset),
                HOST_LABEL: str(host),
            },
            "ownerReferences": [{"controller": True, "uid": job_uid(slice_number)}],
        },
        "spec": {"nodeName": f"node-{slice_number}-{host}"},
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{slice_number}.{host}",
            "containerStatuses": [{"state": {"running": {}}}],
            **changes,
        },
    }


def jobset_manifest(plan: Plan, slice_number: int, *, owner: str = UID, suspend: bool = False) -> Manifest:
    """Return the JobSet that holds a slice."""
    is_elastic = slice_number >= plan.num_base_slices
    return {
        "metadata": {
            "name": jobset_name(plan, slice_number),
            "uid": f"jobset-{slice_number}",
            "labels": {UID_LABEL: UID, SLICE_OFFSET_LABEL: str(slice_number if is_elastic else 0)}
            | ({QUEUE_LABEL: queue} if (queue := plan.spec.scheduling.queue_name) else {}),
            "ownerReferences": [{"controller": True, "uid": owner}],
        },
        "spec": {
            "suspend": suspend,
            "replicatedJobs": [{"replicas": 1 if is_elastic else plan.num_base_slices}],
        },
    }


def child_job_manifest(plan: Plan, slice_number: int, *, failed: int = 0) -> Manifest:
    """Return the child Job of a slice."""
    offset = slice_number if slice_number >= plan.num_base_slices else 0
    labels = {SLICE_OFFSET_LABEL: str(offset), JOB_INDEX_LABEL: str(slice_number - offset)}
    metadata = {"uid": job_uid(slice_number), "labels": labels, "creationTimestamp": "2026-11-20T12:00:00Z"}
    return {"metadata": metadata, "status": {"failed": failed}}


def make_report(slice_number: int = 0, host: int = 0, pod_uid: str = "", **changes: Any) -> HostReport:
    """Return a host's report: idle, with a standby."""
    return HostReport(
        **{
            "job_uid": UID,
            "pod": f"pod-{slice_number}-{host}",
            "pod_uid": pod_uid or f"pod-{slice_number}-{host}",
            "slice": slice_number,
            "host": host,
            "address": f"10.0.{slice_number}.{host}",
            "instance": "a",
            "port": 5000 + 10 * slice_number + host,
            "standby": True,
            **changes,
        }
    )


def failure(reason: FailureReason = FailureReason.CRASH, message: str = "ValueError: bad", **more: Any) -> Failure:
    """Return how a child ended."""
    return Failure(**{"reason": reason, "message": message, "exit_code": 1, **more})
