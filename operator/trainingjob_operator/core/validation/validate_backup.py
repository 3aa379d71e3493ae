"""Rules about checkpoint backups: their own folder on their own volume, and the copy interval."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import is_bucket, seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_storage import (
    MOUNTS,
    check_bucket,
    check_own_folder,
    find_volume,
    folders_overlap,
    writable_mounts,
)

PATH = "spec.checkpoint.backup.uri"


def check_backup_uri(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.backup.uri` must be in a bucket, or on a writable volume outside `checkpoint.uri`."""
    backup = spec.checkpoint.backup
    if backup is None:
        return
    uri, checkpoint_uri = PurePosixPath(backup.uri), PurePosixPath(spec.checkpoint.uri)
    nearest = _list_folders(spec, uri.name or "run")
    if ".." not in uri.parts and folders_overlap(uri, checkpoint_uri):
        message = (
            f"{backup.uri} must not overlap {quote_field('spec.checkpoint.uri', spec.checkpoint.uri)}. Write a folder "
            f"{'in another bucket' if is_bucket(backup.uri) else 'on another volume'}."
        )
        yield Problem(PATH, backup.uri, message, nearest)
    elif is_bucket(backup.uri):
        yield from check_bucket(PATH, backup.uri)
    else:
        yield from check_own_folder(spec, PATH, uri, "backups", nearest)


def check_backup_interval(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.backup.every` must be greater than 0s."""
    backup = spec.checkpoint.backup
    if backup is not None and seconds(backup.every) == 0:
        message = (
            f"{backup.every} must be greater than 0s. Write 1s to copy each saved step as fast as the store allows."
        )
        yield Problem("spec.checkpoint.backup.every", backup.every, message, ("1s",))


def warn_of_shared_volume(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A backup on the claim or in the bucket of the checkpoints is lost together with them."""
    backup = spec.checkpoint.backup
    if backup is None:
        return
    uri, checkpoint_uri = PurePosixPath(backup.uri), PurePosixPath(spec.checkpoint.uri)
    first, second = find_volume(spec, checkpoint_uri), find_volume(spec, uri)
    is_wrong = ".." in uri.parts or folders_overlap(uri, checkpoint_uri)  # another rule reports these
    if is_bucket(backup.uri) and uri.parts[:2] == checkpoint_uri.parts[:2] and not is_wrong:
        message = (
            f"{backup.uri} should not be in the bucket of {quote_field('spec.checkpoint.uri', spec.checkpoint.uri)}. "
            "Both would be lost together. Name another bucket."
        )
        yield Problem(PATH, backup.uri, message)
    if first and second and first.claim_name == second.claim_name and not is_wrong:
        message = (
            f"{uri} should not be on the claim `{second.claim_name}` of `spec.checkpoint.uri`. Both would be lost "
            "together. Mount a second claim, on other storage."
        )
        yield Problem(PATH, str(uri), message, _list_folders(spec, uri.name))


def _list_folders(spec: TrainingJobSpec, name: str) -> tuple[str, ...]:
    """Return folders with a name on writable volumes of other claims than the checkpoints' claim."""
    checkpoint_volume = find_volume(spec, PurePosixPath(spec.checkpoint.uri))
    claims = {volume.mount_path: volume.claim_name for volume in spec.runtime.volumes}
    mounts = [
        mount
        for mount in writable_mounts(spec)
        if checkpoint_volume is None or claims[mount] != checkpoint_volume.claim_name
    ]
    return tuple(f"{mount.rstrip('/')}/{name}" for mount in mounts)


RULES = (
    Rule(("checkpoint.backup", "checkpoint.uri", MOUNTS), check_backup_uri),
    Rule(("checkpoint.backup",), check_backup_interval),
)
WARNINGS = (Rule(("checkpoint.backup", "checkpoint.uri", MOUNTS), warn_of_shared_volume),)
