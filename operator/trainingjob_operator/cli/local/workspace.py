"""The folder of one local run: the job, the folders behind its volumes, and the logs.

```
DIR/job.json              the TrainingJob with its status, from which a later run resumes
DIR/volumes/NAME/         the folder behind the volume NAME
DIR/cache/                compiled programs
DIR/secret                authenticates the compiled programs of this folder; only its owner can read it
DIR/logs/slice-0-host-0.log
DIR/pods/                 private files of each pod, including its token; they exist only during the run
```

Memory volumes of pods are in memory here too, while the pod exists: `/dev/shm/trainingjob-...`, a folder for each DIR.
On a disk, each snapshot would wait for the write-back of the previous snapshot.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainingjob_api.base import is_bucket
from trainingjob_api.spec.runtime import Volume
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.local.bucket_folder import delete_bucket_folder, read_literals
from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.shell.interfaces import Manifest

MEMORY = Path("/dev/shm")  # noqa: S108  # the run creates a private folder in it
_ALLOWED_PATH = re.compile(r"/[A-Za-z0-9_@%+=:,./-]*")


class Workspace:
    """The folder of one local run."""

    def __init__(self, root: Path) -> None:
        """Use a folder; it need not exist yet.

        Raises:
            UsageError: its path has characters that paths of a TrainingJob must not have; the trainer would reject it.
        """
        self.root = root.expanduser().absolute()
        _check_path(self.root)

    @property
    def cache(self) -> Path:
        """Return the folder of compiled programs."""
        return self.root / "cache"

    @property
    def logs(self) -> Path:
        """Return the folder of the hosts' and the operator's logs."""
        return self.root / "logs"

    @property
    def pods(self) -> Path:
        """Return the folder of files that exist as long as their pod."""
        return self.root / "pods"

    @property
    def memory(self) -> Path:
        """Return the folder of the pods' memory volumes; on disk only if `/dev/shm` is not writable."""
        if not os.access(MEMORY, os.W_OK):
            return self.pods / "memory"
        return MEMORY / f"trainingjob-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]}"

    def log(self, slice_number: int, host: int) -> Path:
        """Return the log file of a host."""
        return self.logs / f"slice-{slice_number}-host-{host}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and hold its lock while the context lasts.

        Raises:
            UsageError: the folder cannot be created, or another run holds the lock.
        """
        try:
            for folder in (self.logs, self.root / "volumes", self.cache):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.root / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"Cannot write to {self.root}: {error.strerror}. Choose another with --dir.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise UsageError(f"{self.root} is in use by process {lock.read().strip()}.") from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            self._delete_pod_folders()  # left by a run that was killed
            try:
                self.pods.mkdir(mode=0o700)
                self.memory.mkdir(mode=0o700)
                yield
            finally:
                self._delete_pod_folders()

    def bind_volumes(self, volumes: Sequence[Volume], choices: Sequence[str]) -> dict[str, Path]:
        """Return the folder behind each volume's mount path: that of a choice (`NAME=FOLDER`), or a default one.

        Raises:
            UsageError: a choice names no volume or no folder, or a read-only volume has no folder.
        """
        folders = choose_folders(volumes, choices)
        for volume in volumes:
            default_folder = self.root / "volumes" / volume.name
            if volume.name not in folders and volume.read_only and not default_folder.exists():
                raise UsageError(
                    f"volume `{volume.name}` is read-only and has no folder. "
                    f"Set one with --volume {volume.name}=FOLDER, or fill {default_folder}."
                )
            folders.setdefault(volume.name, default_folder).mkdir(parents=True, exist_ok=True)
        return {volume.mount_path: folders[volume.name] for volume in volumes}

    def delete_results(self, *locations: str) -> None:
        """Delete the results of earlier runs: the job, its logs, and its checkpoints in `locations`. Other files stay.

        A folder of a bucket is deleted if the job of the earlier runs owns it.

        Raises:
            UsageError: a checkpoint folder is outside this workspace, and nothing is deleted; or a bucket fails.
        """
        folders = [Path(location) for location in locations if not is_bucket(location)]
        if outside := [folder for folder in folders if not folder.is_relative_to(self.root)]:
            raise UsageError(f"the checkpoints are in {outside[0]}, outside {self.root}: move or delete them first.")
        job = self.load_job() or {}
        for uri in filter(is_bucket, locations):
            delete_bucket_folder(uri, get_text(job, "metadata", "uid"), read_literals(job))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for log in self.logs.glob("*.log"):
            log.unlink()
        (self.root / "job.json").unlink(missing_ok=True)

    def _delete_pod_folders(self) -> None:
        for folder in (self.memory, self.pods):
            shutil.rmtree(folder, ignore_errors=True)

    def read_secret(self) -> str:
        """Return the secret of this workspace, which later runs share; create it on first use."""
        path = self.root / "secret"
        with contextlib.suppress(FileNotFoundError):
            if secret := path.read_text(encoding="ascii"):
                return secret
        path.unlink(missing_ok=True)  # empty file of a run that was killed before it wrote
        secret = secrets.token_hex(32)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret)
        return secret

    def load_job(self) -> Manifest | None:  # None: nothing has run here yet
        """Return the job as the last run left it.

        Raises:
            UsageError: the file cannot be read or is not JSON.
        """
        path = self.root / "job.json"
        try:
            job: Manifest = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot resume from {path}: {error}. Restart at step 0 with --fresh.") from error
        return job

    def save_job(self, job: Manifest) -> None:
        """Write the job atomically."""
        path = self.root / "job.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


def choose_folders(volumes: Sequence[Volume], choices: Sequence[str]) -> dict[str, Path]:
    """Return the chosen folder (`NAME=FOLDER`) of each volume that has one, by the volume's name.

    Raises:
        UsageError: a choice names no volume or no folder.
    """
    names = [volume.name for volume in volumes]
    return dict(_parse_choice(choice, names) for choice in choices)


def _parse_choice(choice: str, names: Sequence[str]) -> tuple[str, Path]:
    name, separator, folder = choice.partition("=")
    if not separator or not folder:
        raise UsageError(f"--volume {choice}: must have the form NAME=FOLDER.")
    if name not in names:
        volume_names = ", ".join(f"`{volume_name}`" for volume_name in names) or "none"
        raise UsageError(f"--volume {choice}: the job has no volume `{name}`. It has: {volume_names}.")
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"--volume {choice}: {path} must be a folder.")
    _check_path(path)
    return name, path


def _check_path(path: Path) -> None:
    if not _ALLOWED_PATH.fullmatch(str(path)):
        raise UsageError(f"{path}: the path must have only letters, digits and _@%+=:,.- in it. Choose another folder.")
