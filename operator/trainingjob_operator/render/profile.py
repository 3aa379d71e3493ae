"""Pod profiles in a rendered pod: what they add, and whether a pod has exactly that.

`add_profile` renders. `subtract_profile` is its counterpart for the check, and does not use it: it removes what the
profile allows from a pod, so that the rest must satisfy the rules of a pod without a profile.
"""

import copy
from collections.abc import Iterator
from typing import Any

from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.planner.pod_profile import PodProfile

_MISSING = object()


def add_profile(pod: Manifest, profile: PodProfile | None) -> Manifest:
    """Return a pod template with what a profile adds. Its first container is the trainer's.

    Environment variables of the job win over those of the profile, which are defaults.
    """
    if profile is None:
        return pod
    spec = pod["spec"]
    trainer, *others = spec["containers"]
    job_variables = {variable["name"] for variable in trainer["env"]}
    part = profile.container
    if "env" in part:
        part["env"] = [variable for variable in part["env"] if variable["name"] not in job_variables]
    containers = {"containers": [_merge(trainer, part), *others]}
    metadata = _merge(pod["metadata"], profile.metadata)
    return pod | {"metadata": metadata, "spec": _merge(spec, profile.spec) | containers}


def _merge(value: Any, part: Any) -> Any:
    """Return a value with a part: objects are merged, lists are joined, and other values replace."""
    if isinstance(value, dict) and isinstance(part, dict):
        unchanged = {key: inner for key, inner in value.items() if key not in part}
        merged = {key: _merge(value.get(key, _MISSING), inner) for key, inner in part.items() if inner is not None}
        return unchanged | merged
    if isinstance(value, list) and isinstance(part, list):
        return [*value, *part]
    return part


def subtract_profile(pod: Manifest, profile: PodProfile) -> tuple[Manifest, list[str], frozenset[str]]:
    """Return a pod without what a profile allows, its deviations from the profile, and the paths that it decides.

    A path that the profile decides, such as a user that it removes, is not subject to the rules of other pods.
    """
    rest = copy.deepcopy(pod)
    deviations: list[str] = []
    decided: set[str] = set()
    for target, part, path in (
        (rest.get("metadata"), profile.metadata, "pod.metadata"),
        (rest.get("spec"), profile.spec, "pod.spec"),
        (_trainer(rest), profile.container, "pod.spec.containers[0]"),
    ):
        deviations += _subtract(target, part, path, decided)
    return rest, deviations, frozenset(decided)


def _trainer(pod: Manifest) -> Any:
    containers = pod.get("spec", {}).get("containers") or [None]
    return containers[0]


def _subtract(target: Any, part: Manifest, path: str, decided: set[str]) -> Iterator[str]:
    """Remove a part from an object in place; yield one line for each field that is not as in the part."""
    if not isinstance(target, dict):
        yield f"{path}: must be an object"
        return
    for key, expected in part.items():
        field = f"{path}.{key}"
        if expected is None:
            decided.add(field)
            if key in target:
                yield f"{field}: must be absent, as in the pod profile"
        elif isinstance(expected, dict) and key in target:
            yield from _subtract(target[key], expected, field, decided)
            if not target[key]:
                del target[key]
        elif isinstance(expected, list):
            yield from _subtract_items(target, key, expected, field)
        else:
            decided.add(field)
            if target.pop(key, _MISSING) != expected:
                yield f"{field}: must be as in the pod profile"


def _subtract_items(target: Manifest, key: str, expected: list[Any], field: str) -> Iterator[str]:
    """Remove the items of a list of the profile. A variable of the environment may be the job's instead."""
    actual = target.get(key, [])
    for item in expected:
        if item in actual:
            actual.remove(item)
        elif key != "env" or item["name"] not in {variable.get("name") for variable in actual}:
            yield f"{field}: must have the item of the pod profile {item}"
    if not actual:
        target.pop(key, None)
