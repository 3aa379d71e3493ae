"""Rules about the pod profile, which administrators define and users choose."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.planner.problem_messages import join_words
from trainingjob_operator.core.validation.rule import HardwareRule


def check_profile(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The pod profile must be one that administrators defined for the namespace, and mount no folder of a volume."""
    name = spec.scheduling.pod_profile
    if name is None or name in hardware.profiles:
        yield from _check_mounts(spec, hardware.find_profile(name, spec.slices.accelerator))
        return
    names = tuple(sorted(hardware.profiles))
    if name in hardware.withheld_profiles:
        message = f"{name} is for jobs of other namespaces. Ask an administrator to add this one to the profile."
        yield Problem("spec.scheduling.podProfile", name, message, nearest_names(name, names))
        return
    defined = f"which are {join_words(names)}" if names else "but there are none"
    message = (
        f"{name} must be a pod profile that administrators defined, {defined}. Administrators add it to `podProfiles` "
        "of the chart; the command line reads it with `--pod-profiles`."
    )
    yield Problem("spec.scheduling.podProfile", name, message, nearest_names(name, names))


def _check_mounts(spec: TrainingJobSpec, profile: PodProfile | None) -> Iterator[Problem]:
    mounts = profile.container.get("volumeMounts", []) if profile else []
    volume_by_path = {str(mount.get("mountPath", "")).rstrip("/"): mount["name"] for mount in mounts}
    for number, volume in enumerate(spec.runtime.volumes):
        name = volume_by_path.get(volume.mount_path.rstrip("/"))
        if profile and name is not None:
            message = (
                f"{volume.mount_path} must be another folder: the pod profile {profile.name} mounts its volume {name} "
                "there."
            )
            yield Problem(f"spec.runtime.volumes[{number}].mountPath", volume.mount_path, message)


RULES = (HardwareRule(("scheduling.podProfile", "slices.accelerator", "runtime.volumes"), check_profile),)
