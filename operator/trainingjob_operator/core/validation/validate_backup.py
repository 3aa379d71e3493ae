"""Rules about checkpoint backups: their own folder on their own volume, and the copy interval."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_storage import (
    MOUNTS,
    check_own_folder,
    find_volume,
    folders_overlap,
    writable_mounts,
)

PATH = "spec.checkpoint.backup.uri"


def check_backup_uri(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Copies lie in a folder of their own: in that of the checkpoints they would be taken for what they copy."""
    backup = spec.checkpoint.backup
    if backup is None:
        return
    uri, own = PurePosixPath(backup.uri), PurePosixPath(spec.checkpoint.uri)
    nearest = _list_folders(spec, uri.name or "run")
    if ".." not in uri.parts and folders_overlap(uri, own):
        message = f"{uri} and spec.checkpoint.uri, {own}, are not two folders. Copies go to another volume."
        yield Problem(PATH, str(uri), message, nearest)
    else:
        yield from check_own_folder(spec, PATH, uri, "copies", nearest)


def check_backup_interval(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Between two copies passes some time."""
    backup = spec.checkpoint.backup
    if backup is not None and seconds(backup.every) == 0:
        message = f"{backup.every} is no time. To copy every step that is saved, as fast as the store takes it, say 1s."
        yield Problem("spec.checkpoint.backup.every", backup.every, message, ("1s",))


def warn_of_shared_volume(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A copy beside the original is lost with it."""
    backup = spec.checkpoint.backup
    if backup is None:
        return
    uri, own = PurePosixPath(backup.uri), PurePosixPath(spec.checkpoint.uri)
    first, second = find_volume(spec, own), find_volume(spec, uri)
    is_wrong = ".." in uri.parts or folders_overlap(uri, own)  # another rule reports these
    if first and second and first.claim_name == second.claim_name and not is_wrong:
        message = (
            f"{uri} is on the claim {second.claim_name}, as spec.checkpoint.uri is: what loses one of them loses both. "
            "Mount a second claim, on other storage."
        )
        yield Problem(PATH, str(uri), message, _list_folders(spec, uri.name))


def _list_folders(spec: TrainingJobSpec, name: str) -> tuple[str, ...]:
    """Return folders with a name on writable volumes of other claims than the checkpoints' claim."""
    own = find_volume(spec, PurePosixPath(spec.checkpoint.uri))
    claims = {volume.mount_path: volume.claim_name for volume in spec.runtime.volumes}
    mounts = [mount for mount in writable_mounts(spec) if own is None or claims[mount] != own.claim_name]
    return tuple(f"{mount.rstrip('/')}/{name}" for mount in mounts)


RULES = (
    Rule(("checkpoint.backup", "checkpoint.uri", MOUNTS), check_backup_uri),
    Rule(("checkpoint.backup",), check_backup_interval),
)
WARNINGS = (Rule(("checkpoint.backup", "checkpoint.uri", MOUNTS), warn_of_shared_volume),)
