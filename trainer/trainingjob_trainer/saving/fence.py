"""Which world of a job may write below a folder: the newest one that has come there, and no other.

A world that the operator has given up may go on where nobody hears it, on the same storage as its successor. So each
world says that it is there, by a file of its own, before it reads what is saved; and before it puts a step into place
or deletes one, it looks whether a later one has said so, or another job owns the folder by now. Then it ends.

Between that look and what follows a world may be stopped for as long as it likes. So nothing that is being written has
a name that another world uses, a step comes into place whole, with its proof, by one renaming, and what that would
replace is looked at after it was moved out of the way.
"""

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import World
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.files import parse_number
from trainingjob_trainer.saving import owner

PREFIX = "WORLD-"
NAME = re.compile(rf"{PREFIX}(?P<generation>[0-9]+)-(?P<uid>.+)")


class Fence:
    """The right of a world to write below a folder."""

    def __init__(self, root: Path, world: World) -> None:
        self._root = root
        self.job_uid = world.job_uid
        self.generation = world.generation

    def claim(self) -> None:
        """Say that this world is there. One process of it does, before any reads what is saved.

        Raises:
            TrainingError: a later world of the job is there already.
            OSError: storage does not answer.
        """
        self.check()
        (self._root / f"{PREFIX}{self.generation}-{self.job_uid}").touch()
        self.check()
        for generation, path in self._list():
            if generation < self.generation:
                with suppress(OSError):  # it does no harm
                    path.unlink()

    def check(self) -> None:
        """Confirm that no later world is there, and that the folder is still this job's.

        Raises:
            TrainingError: this world is cut off.
            OSError: storage does not answer.
        """
        self._refresh()
        newest = max((generation for generation, _ in self._list()), default=0)
        if newest > self.generation:
            raise self._cut_off(
                f"generation {newest} of the job is there, and this is generation {self.generation}. If no other pod "
                "of the job runs, its status was lost: give the folder to a new job with `checkpoint.takeover: true`."
            )
        if owner.is_anothers(self._root, self.job_uid):
            raise self._cut_off("another job has taken it over.")

    def _refresh(self) -> None:
        """Have the folder's listing read anew: on NFS it may be a minute old, unless something was made there."""
        self._root.mkdir(parents=True, exist_ok=True)
        probe = self._root / f".look.{os.uname().nodename}.{os.getpid()}.{threading.get_native_id()}"
        probe.unlink(missing_ok=True)  # it may be a link
        probe.touch()
        probe.unlink()

    def _list(self) -> list[tuple[int, Path]]:
        """Return the generations of this job that have said that they are there."""
        found = ((NAME.fullmatch(path.name), path) for path in self._root.glob(f"{PREFIX}*"))
        return [
            (generation, path)
            for match, path in found
            if match and match["uid"] == self.job_uid and (generation := parse_number(match["generation"])) is not None
        ]

    def _cut_off(self, why: str) -> TrainingError:
        return TrainingError(
            FailureReason.STORAGE,
            f"this world may not write to {self._root} any more: {why}",
            path="spec.checkpoint.uri",
            value=self._root,
            fatal=False,
        )
