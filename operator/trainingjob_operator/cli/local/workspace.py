"""The folder of one local run: the job as it stands, the folders behind its volumes, the hosts' logs.

```
DIR/job.json              the TrainingJob with its status: what a later run goes on from
DIR/volumes/NAME/         what stands for the volume NAME
DIR/cache/                compiled programs
DIR/logs/slice-0-host-0.log
```
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.shell.ports import Manifest

_ALLOWED = re.compile(r"/([A-Za-z0-9_@%+=:,.-]+/?)*")


class Workspace:
    """The folder of one local run."""

    def __init__(self, root: Path) -> None:
        """Use a folder; it need not exist yet.

        Raises:
            CommandError: its path has characters that no path in a TrainingJob may have.
        """
        self.root = root.expanduser().absolute()
        if not _ALLOWED.fullmatch(str(self.root)):
            raise CommandError(
                f"{self.root}: the path of a run may hold letters, digits and _@%+=:,.- only. Choose one with --dir."
            )

    @property
    def cache(self) -> Path:
        """Return the folder of compiled programs."""
        return self.root / "cache"

    def volume(self, name: str) -> Path:
        """Return the folder that stands for a volume."""
        return self.root / "volumes" / name

    def log(self, slice_number: int, host: int) -> Path:
        """Return the file that a host's output is appended to."""
        return self.root / "logs" / f"slice-{slice_number}-host-{host}.log"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it.

        Raises:
            CommandError: the folder cannot be made, or another run is using it.
        """
        try:
            for folder in (self.root / "logs", self.root / "volumes", self.cache):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.root / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"Cannot write to {self.root}: {error.strerror}. Choose another with --dir.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise CommandError(f"{self.root} is in use by process {lock.read().strip()}.") from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def load_job(self) -> Manifest | None:  # None: nothing has run here yet
        """Return the job as the last run left it.

        Raises:
            CommandError: its file is not what a run writes.
        """
        path = self.root / "job.json"
        try:
            job: Manifest = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CommandError(f"Cannot go on from {path}: {error}. Start anew with --fresh.") from error
        return job

    def save_job(self, job: Manifest) -> None:
        """Write the job down, whole or not at all."""
        path = self.root / "job.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
