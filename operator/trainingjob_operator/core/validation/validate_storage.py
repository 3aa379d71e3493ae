"""Rules about storage: the folders of checkpoints and compiled programs, and checkpoint retention."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import MAX_PATH, MAX_SHORT_NAME, seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import Volume
from trainingjob_operator.core.names import nearest_names, unused_name
from trainingjob_operator.core.planner.mesh import nearest_multiples
from trainingjob_operator.core.validation.reserved_folders import is_below, is_reserved
from trainingjob_operator.core.validation.rule import Rule

MOUNTS = "runtime.volumes"


def check_checkpoint_uri(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Checkpoints must outlive the pod: they lie in a folder of a writable volume."""
    uri = PurePosixPath(spec.checkpoint.uri)
    nearest = tuple(f"{mount.rstrip('/')}/{uri.name or 'run'}" for mount in writable_mounts(spec))
    yield from check_own_folder(spec, "spec.checkpoint.uri", uri, "checkpoints", nearest)


def check_own_folder(
    spec: TrainingJobSpec, path: str, uri: PurePosixPath, contents: str, nearest: tuple[str, ...]
) -> Iterator[Problem]:
    """Check that a folder of the job lies on a writable volume below the mount.

    `what` names its contents in messages.
    """
    volume = find_volume(spec, uri)
    if ".." in uri.parts:
        yield Problem(path, str(uri), f"{uri} steps upwards: name the folder itself.")
    elif volume is None:
        message = f"{uri} is on none of spec.runtime.volumes: {contents} there would end with the pod."
        if not nearest:
            message += " Mount a PersistentVolumeClaim that all hosts share, and name a folder below it."
        yield Problem(path, str(uri), message, nearest)
    elif volume.read_only:
        yield Problem(path, str(uri), f"{uri} is on the volume {volume.name}, which is mounted read-only.", nearest)
    elif len(uri.parts) < 3 or uri == PurePosixPath(volume.mount_path):
        message = f"{uri} is the top of a volume: a job owns its folder alone, so give it one below."
        yield Problem(path, str(uri), message, (f"{volume.mount_path.rstrip('/')}/run",))


def check_volumes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Volumes have names and mount paths of their own, away from the pod's."""
    taken = {volume.name for volume in spec.runtime.volumes}
    for number, volume in enumerate(spec.runtime.volumes):
        at, earlier = f"spec.runtime.volumes[{number}]", spec.runtime.volumes[:number]
        nearest = (_free_mount(spec, volume.name),)
        mount = PurePosixPath(volume.mount_path)
        if volume.name in {one.name for one in earlier}:
            message = f"{volume.name} is the name of another volume."
            free = unused_name(volume.name, taken, MAX_SHORT_NAME)
            taken.add(free)
            yield Problem(f"{at}.name", volume.name, message, (free,))
        if ".." in mount.parts:
            yield Problem(f"{at}.mountPath", volume.mount_path, f"{mount} steps upwards: name the folder itself.")
        elif is_reserved(volume.mount_path):
            message = f"{mount} belongs to the pod itself."
            yield Problem(f"{at}.mountPath", volume.mount_path, message, nearest)
        elif mount in {PurePosixPath(one.mount_path) for one in earlier}:
            message = f"{mount} is the mount path of another volume."
            yield Problem(f"{at}.mountPath", volume.mount_path, message, nearest)


def check_compile_cache(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Compiled programs need a folder that can be written."""
    path, writable = spec.runtime.compile_cache.path, writable_mounts(spec)
    if path is None:
        return
    if ".." in PurePosixPath(path).parts or not any(is_below(path, mount) for mount in writable):
        message = f"{path} is on no writable volume of spec.runtime.volumes; leave it out to use one of the pod's own."
        nearest = tuple(f"{mount.rstrip('/')}/compile-cache" for mount in writable)
        yield Problem("spec.runtime.compileCache.path", path, message, nearest)


def check_initialize_from(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The first parameters come from a folder that the pods can read, and that is another job's."""
    source = spec.checkpoint.initialize_from
    if source is None:
        return
    uri, own, path = PurePosixPath(source.uri), PurePosixPath(spec.checkpoint.uri), "spec.checkpoint.initializeFrom.uri"
    if ".." in uri.parts:
        yield Problem(path, source.uri, f"{uri} steps upwards: name the folder itself.")
    elif not any(is_below(source.uri, volume.mount_path) for volume in spec.runtime.volumes):
        message = f"{uri} is on none of spec.runtime.volumes: no pod can read it. Mount the volume that holds it."
        yield Problem(path, source.uri, message)
    elif folders_overlap(uri, own):
        message = f"{uri} and spec.checkpoint.uri, {own}, are not two folders. A job goes on from its own by itself."
        yield Problem(path, source.uri, message)


def check_save_interval(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Between two saves passes some time."""
    every = spec.checkpoint.save.every
    if every is not None and seconds(every) == 0:
        message = f"{every} is no time: every step would wait for the save before it."
        yield Problem("spec.checkpoint.save.every", every, message, ("10m",))


def check_best_evaluation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """What decides which steps are the best must be measured."""
    best, names = spec.checkpoint.keep.best, tuple(one.name for one in spec.evaluation)
    if best and best.evaluation not in names:
        has = f"it has {', '.join(names)}" if names else "it is empty"
        message = f"{best.evaluation} is the name of no text in spec.evaluation: {has}."
        yield Problem(
            "spec.checkpoint.keep.best.evaluation", best.evaluation, message, nearest_names(best.evaluation, names)
        )


def warn_of_unused_cache_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Programs that are not kept need no folder."""
    cache = spec.runtime.compile_cache
    if cache.path is not None and not cache.enabled:
        message = f"{cache.path} has no effect while the cache is off."
        yield Problem(
            "spec.runtime.compileCache.path", cache.path, message, ("spec.runtime.compileCache.enabled: true",)
        )


def warn_of_rare_saves(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job that never saves on its way loses everything with its first failure."""
    every, steps = spec.checkpoint.save.every_steps, spec.training.steps
    if every > steps and spec.checkpoint.save.every is None:
        message = f"{every} is above spec.training.steps, {steps}: a failure before the end starts from scratch."
        yield Problem("spec.checkpoint.save.everySteps", every, message, (str(max(steps // 10, 1)),))


def warn_of_unaligned_retention(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Only saved steps can be kept."""
    keep, save = spec.checkpoint.keep.every_steps, spec.checkpoint.save.every_steps
    if keep is not None and keep % save and keep <= spec.training.steps:
        message = (
            f"{keep} is not a multiple of spec.checkpoint.save.everySteps, {save}: some steps are not there to keep."
        )
        nearest = tuple(str(multiple) for multiple in nearest_multiples(save, keep))
        yield Problem("spec.checkpoint.keep.everySteps", keep, message, nearest)


def warn_of_unreached_retention(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A step above the last one is never there to keep."""
    keep, steps = spec.checkpoint.keep.every_steps, spec.training.steps
    if keep is not None and keep > steps:
        message = f"{keep} is above spec.training.steps, {steps}: no step is kept for good."
        yield Problem(
            "spec.checkpoint.keep.everySteps", keep, message, (str(min(spec.checkpoint.save.every_steps, steps)),)
        )


def folders_overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    """Return whether one folder contains the other."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def find_volume(spec: TrainingJobSpec, path: PurePosixPath) -> Volume | None:  # None: on no volume
    """Return the volume that a path lies on."""
    mounts = [volume for volume in spec.runtime.volumes if path.is_relative_to(volume.mount_path)]
    return max(mounts, key=lambda volume: len(PurePosixPath(volume.mount_path).parts), default=None)


def writable_mounts(spec: TrainingJobSpec) -> list[str]:
    """Return the mount paths of writable volumes, whose files outlive the pod."""
    return [one.mount_path for one in spec.runtime.volumes if not (one.read_only or is_reserved(one.mount_path))]


def _free_mount(spec: TrainingJobSpec, name: str) -> str:
    """Return an unused mount path for a volume."""
    taken = {str(PurePosixPath(volume.mount_path)) for volume in spec.runtime.volumes}
    path = f"/mnt/{name}"
    return unused_name(path, taken, MAX_PATH) if path in taken else path


RULES = (
    Rule(("checkpoint.uri", MOUNTS), check_checkpoint_uri),
    Rule((MOUNTS,), check_volumes),
    Rule(("runtime.compileCache.path", MOUNTS), check_compile_cache),
    Rule(("checkpoint.initializeFrom", "checkpoint.uri", MOUNTS), check_initialize_from),
    Rule(("checkpoint.save.every",), check_save_interval),
    Rule(("checkpoint.keep.best", "evaluation"), check_best_evaluation),
)
WARNINGS = (
    Rule(("runtime.compileCache",), warn_of_unused_cache_path),
    Rule(("checkpoint.save.everySteps", "checkpoint.save.every", "training.steps"), warn_of_rare_saves),
    Rule(("checkpoint.save.everySteps", "checkpoint.keep.everySteps", "training.steps"), warn_of_unaligned_retention),
    Rule(("checkpoint.save.everySteps", "checkpoint.keep.everySteps", "training.steps"), warn_of_unreached_retention),
)
