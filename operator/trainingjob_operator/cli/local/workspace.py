"""The folder of one local run: the job as it stands, the folders behind its volumes, the hosts' logs.

```
DIR/job.json              the TrainingJob with its status: what a later run goes on from
DIR/volumes/NAME/         what stands for the volume NAME
DIR/cache/                compiled programs
DIR/secret                by which they are known to be this folder's; only its owner can read it
DIR/logs/slice-0-host-0.log
DIR/pods/                 what each pod sees of its own, tokens too; only while the run lasts
```

What pods keep in memory lies in memory here too, as long as they live: `/dev/shm/trainingjob-...`, a folder for each
DIR. On a disk each snapshot would wait for what is being written back of the one before.
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

from trainingjob_api.running import Volume
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.shell.ports import Manifest

MEMORY = Path("/dev/shm")  # noqa: S108  # a folder in it is ours alone
_ALLOWED = re.compile(r"/[A-Za-z0-9_@%+=:,./-]*")


class Workspace:
    """The folder of one local run."""

    def __init__(self, root: Path) -> None:
        """Use a folder; it need not exist yet.

        Raises:
            UsageError: its path has characters that no path of a TrainingJob may have: the trainer would refuse it.
        """
        self.root = root.expanduser().absolute()
        _check_path(self.root)

    @property
    def cache(self) -> Path:
        """Return the folder of compiled programs."""
        return self.root / "cache"

    @property
    def logs(self) -> Path:
        """Return the folder of what the hosts and the operator write."""
        return self.root / "logs"

    @property
    def pods(self) -> Path:
        """Return the folder of what lives as long as its pod."""
        return self.root / "pods"

    @property
    def memory(self) -> Path:
        """Return the folder of the pods' memory: on a disk only where this machine has no other."""
        if not os.access(MEMORY, os.W_OK):
            return self.pods / "memory"
        return MEMORY / f"trainingjob-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]}"

    def log(self, slice_number: int, host: int) -> Path:
        """Return the file that a host's output is appended to."""
        return self.logs / f"slice-{slice_number}-host-{host}.log"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it.

        Raises:
            UsageError: the folder cannot be made, or another run is using it.
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
            self._forget_pods()  # of a run that was killed
            try:
                self.pods.mkdir(mode=0o700)
                self.memory.mkdir(mode=0o700)
                yield
            finally:
                self._forget_pods()

    def bind(self, volumes: Sequence[Volume], chosen: Sequence[str]) -> dict[str, Path]:
        """Return the folder behind each volume's mount path: one that was chosen (`NAME=FOLDER`), or one of ours.

        Raises:
            UsageError: a choice names no volume or no folder, or there is nothing that could be read.
        """
        names = [volume.name for volume in volumes]
        folders = dict(_parse_choice(choice, names) for choice in chosen)
        for volume in volumes:
            own = self.root / "volumes" / volume.name
            if volume.name not in folders and volume.read_only and not own.exists():
                raise UsageError(
                    f"volume `{volume.name}` is read-only and there is no folder for it. "
                    f"Give one with --volume {volume.name}=FOLDER, or fill {own}."
                )
            folders.setdefault(volume.name, own).mkdir(parents=True, exist_ok=True)
        return {volume.mount_path: folders[volume.name] for volume in volumes}

    def forget(self, *folders: Path) -> None:
        """Delete what earlier runs left: the job, its logs and its checkpoints in `folders`. Other files stay.

        Raises:
            UsageError: the checkpoints are outside this folder; they are not deleted unasked.
        """
        if outside := [folder for folder in folders if not folder.is_relative_to(self.root)]:
            raise UsageError(f"the checkpoints are in {outside[0]}, outside {self.root}: move or delete them first.")
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for log in self.logs.glob("*.log"):
            log.unlink()
        (self.root / "job.json").unlink(missing_ok=True)

    def _forget_pods(self) -> None:
        for folder in (self.memory, self.pods):
            shutil.rmtree(folder, ignore_errors=True)

    def read_secret(self) -> str:
        """Return the secret of this folder, which later runs have too; it is made if need be."""
        path = self.root / "secret"
        with contextlib.suppress(FileNotFoundError):
            if secret := path.read_text(encoding="ascii"):
                return secret
        path.unlink(missing_ok=True)  # of a run that was killed before it wrote
        secret = secrets.token_hex(32)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret)
        return secret

    def load_job(self) -> Manifest | None:  # None: nothing has run here yet
        """Return the job as the last run left it.

        Raises:
            UsageError: its file is not what a run writes.
        """
        path = self.root / "job.json"
        try:
            job: Manifest = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot go on from {path}: {error}. Start anew with --fresh.") from error
        return job

    def save_job(self, job: Manifest) -> None:
        """Write the job down, whole or not at all."""
        path = self.root / "job.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)


def _parse_choice(choice: str, names: Sequence[str]) -> tuple[str, Path]:
    name, separator, folder = choice.partition("=")
    if not separator or not folder:
        raise UsageError(f"--volume {choice}: write it as NAME=FOLDER.")
    if name not in names:
        known = ", ".join(f"`{one}`" for one in names) or "none"
        raise UsageError(f"--volume {choice}: the job has no volume `{name}`. It has: {known}.")
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"--volume {choice}: {path} is no folder.")
    _check_path(path)
    return name, path


def _check_path(path: Path) -> None:
    if not _ALLOWED.fullmatch(str(path)):
        raise UsageError(f"{path}: the path may hold letters, digits and _@%+=:,.- only. Choose another folder.")
