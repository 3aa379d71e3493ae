"""Write fences: only the newest world of a job may write below a checkpoint folder.

A world that the operator has given up may keep running unnoticed, on the same storage as its successor. So each world
creates a marker file before it reads checkpoints. Before it commits or deletes a step, it checks for the marker of a
later world and for another owner of the folder. If it finds one, it ends.

The operator gives a generation to one world only, unless the status of the job was lost or restored from a backup. So
the marker is created exclusively, and names the process that created it. A second world of the same generation ends
before it reads checkpoints. The next generation is later than both.

A world may be suspended between that check and the write. So each save has a folder whose name no other world uses, and
a second check after the manifest deletes it again if a later world has appeared.
"""

import platform
import re
import uuid
from contextlib import suppress

from trainingjob_agent.shared_files import parse_number
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import World
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

MARKER_PREFIX = "WORLD-"
THIS_PROCESS = f"{platform.node()}/{uuid.uuid4().hex}"
"""The identity of a world, in its marker. Process 0 creates the marker, and a process belongs to one world only."""
MAX_BYTES = 4096
"""Maximum size of a marker in bytes. Older trainers left it empty."""
NAME = re.compile(rf"{MARKER_PREFIX}(?P<generation>[0-9]+)-(?P<uid>.+)")


class Fence:
    """The right of a world to write to a store."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._marker = f"{MARKER_PREFIX}{world.generation}-{world.job_uid}"
        self._identity = THIS_PROCESS.encode()
        self.job_uid = world.job_uid
        self.generation = world.generation
        self.resumed_step: int | None = None
        """The step from which this world resumes; 0: from scratch. None: it has not resumed yet."""

    def has_replaced(self, generation: int, step: int) -> bool:
        """Return whether an earlier world saved a step after the one from which this world resumes.

        That world was cut off, and its step is in no history.
        """
        return generation < self.generation and self.resumed_step is not None and step > self.resumed_step

    def claim(self) -> None:
        """Create the marker of this world. One process calls this before any process reads checkpoints.

        Raises:
            TrainingError: a later world of the job, or another one of the same generation, has a marker.
            OSError: the store does not respond.
        """
        self.check()
        with suppress(FileExistsError):  # the check tells whose it is
            self._store.create_exclusive(self._marker, self._identity)
        self.check()
        for generation, marker in self._list_markers():
            if generation < self.generation:
                with suppress(OSError):  # an old marker does no harm
                    self._store.delete(marker)

    def check(self) -> None:
        """Check that no other world has the generation, that no later one exists, and that this job owns the folder.

        Raises:
            TrainingError: this world is fenced off.
            OSError: the store does not respond.
        """
        # The marker first: a later world deletes it after it has created its own.
        if self._has_other_marker():
            raise self.reused_error()
        newest = max((generation for generation, _ in self._list_markers()), default=0)
        if newest > self.generation:
            raise self._fenced_off_error(
                f"generation {newest} of the job is there, and this is generation {self.generation}. If no other pod "
                "of the job runs, its status was lost; the next world has a later generation, and resumes.",
                newest,
            )
        if owner.is_owned_by_other(self._store, self.job_uid):
            raise self._fenced_off_error("another job has taken it over.")

    def reused_error(self, newest: int = 0) -> TrainingError:
        """Return the error of a world whose generation another one had before. `newest`: the newest one in storage."""
        return self._fenced_off_error(
            f"another world was generation {self.generation} of the job: its status was lost, or restored from a "
            "backup. Nothing was deleted. The next world has a later generation, and resumes from the newest step.",
            max(newest, self.generation),
        )

    def _has_other_marker(self) -> bool:
        """Return whether the marker of this generation exists, and another process created it."""
        try:
            return self._store.read(self._marker, MAX_BYTES) != self._identity
        except FileNotFoundError:
            return False
        except ValueError:  # no trainer writes such a marker
            return True

    def _list_markers(self) -> list[tuple[int, str]]:
        """Return the generations of this job that have a marker, with the markers."""
        found = ((NAME.fullmatch(entry.name), entry.name) for entry in self._store.list_folder(is_current=True))
        return [
            (generation, name)
            for match, name in found
            if match and match["uid"] == self.job_uid and (generation := parse_number(match["generation"])) is not None
        ]

    def _fenced_off_error(self, why: str, newest_generation: int = 0) -> TrainingError:
        return TrainingError(
            FailureReason.STORAGE,
            f"this world may not write to {self._store.root} any more: {why}",
            path="spec.checkpoint.uri",
            value=self._store.root,
            fatal=False,
            newest_generation=newest_generation,
        )
