"""Adaptation of a spec to this machine: without cluster-only fields, with a limited number of slices. Pure.

Paths stay as written; they are translated where a pod's volumes are mounted. Mesh, batch, data and numerics are the
same as on a cluster.
"""

from typing import Any

from trainingjob_api.pod_variables import PodVariable, pod_variables
from trainingjob_api.spec.job import TrainingJobSpec

_CLUSTER_ONLY = ("scheduling", "suspend", "ttlSecondsAfterFinished")
_CLUSTER_ONLY_RUNTIME = ("image", "imagePullPolicy", "imagePullSecrets", "serviceAccountName")


def localize_spec(spec: TrainingJobSpec, num_slices: int | None) -> dict[str, Any]:
    """Return the raw spec of a local run. `num_slices` is the maximum number of slices; None: as in the spec."""
    raw: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in _CLUSTER_ONLY:
        raw.pop(name, None)
    for name in _CLUSTER_ONLY_RUNTIME:
        raw["runtime"].pop(name, None)
    raw.get("data", {}).pop("prepare", None)  # the hosts of this machine tokenize
    raw["runtime"]["env"] = [variable for variable in raw["runtime"]["env"] if "value" in variable]
    if num_slices is not None:
        raw["slices"] |= _limit(spec, num_slices)
    return raw


def external_variables(spec: TrainingJobSpec) -> tuple[PodVariable, ...]:
    """Return the environment variables that a cluster takes from Secrets and ConfigMaps.

    In a local run the shell must set them.
    """
    return tuple(pod_variable for pod_variable in pod_variables(spec) if pod_variable.variable.value is None)


def _limit(spec: TrainingJobSpec, num_slices: int) -> dict[str, Any]:
    if spec.slices.count is not None:
        return {"count": num_slices}
    limits: dict[str, Any] = {"min": min(spec.slices.min_slices, num_slices), "max": num_slices}
    if spec.slices.allowed is not None:
        limits["allowed"] = [number for number in spec.slices.allowed if number <= num_slices] or [num_slices]
    return limits
