"""Write fences: only the newest world of a job may write below a checkpoint folder.

A world that the operator has given up may keep running unnoticed, on the same storage as its successor. So each world
creates a marker file before it reads checkpoints. Before it commits or deletes a step, it checks for the marker of a
later world and for another owner of the folder. If it finds one, it ends.

The operator gives a generation to one world only, unless the status of the job was lost or restored from a backup. So
the marker is created exclusively, and names the process that created it. A second world of the same generation ends
before it reads checkpoints. The next generation is later than both.

A replica trains one slice, and other slices have worlds of other generations at the same time. Its marker has the
number of the slice, and only a later world of the same slice or of the whole job fences it off.

A world may be suspended between that check and the write. So each save has a folder whose name no other world uses, and
a second check after the manifest deletes it again if a later world has appeared.
"""

import platform
import re
import uuid
from contextlib import suppress
from typing import NamedTuple

from trainingjob_agent.shared_files import parse_number
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import World
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.snapshots.lineage import StepRecord
from trainingjob_trainer.store.port import Store

MARKER_PREFIX = "WORLD-"
THIS_PROCESS = f"{platform.node()}/{uuid.uuid4().hex}"
"""The identity of a world, in its marker. Process 0 creates the marker, and a process belongs to one world only."""
MAX_BYTES = 4096
"""Maximum size of a marker in bytes. Older trainers left it empty."""
NAME = re.compile(rf"{MARKER_PREFIX}(?P<generation>[0-9]+)-(slice-(?P<slice>[0-9]+)-)?(?P<uid>.+)")


class Marker(NamedTuple):
    """The marker of a world in a store."""

    generation: int
    slice: int | None
    """The slice of a replica. None: the world trains the whole job."""
    name: str

    @property
    def scope(self) -> str:
        """Return what its world trains, for messages."""
        return "the job" if self.slice is None else f"slice {self.slice}"


class Fence:
    """The right of a world to write to a store. `slice_number` is that of a replica; None: it trains the whole job."""

    def __init__(self, store: Store, world: World, slice_number: int | None = None) -> None:
        self._store = store
        scope = "" if slice_number is None else f"slice-{slice_number}-"
        self._marker = f"{MARKER_PREFIX}{world.generation}-{scope}{world.job_uid}"
        self._identity = THIS_PROCESS.encode()
        self._lineage = len(world.rollbacks)
        self.job_uid = world.job_uid
        self.generation = world.generation
        self.slice_number = slice_number
        self.resumed_step: int | None = None
        """The step from which this world resumes; 0: from scratch. None: it has not resumed yet."""

    def has_replaced(self, record: StepRecord) -> bool:
        """Return whether an earlier world saved a step after the one from which this world resumes.

        That world was cut off, and its step is in no history. A step of another replica is in the history of all.
        """
        is_earlier = record.generation < self.generation and not self.shares(record)
        return is_earlier and self.resumed_step is not None and record.step > self.resumed_step

    def shares(self, record: StepRecord) -> bool:
        """Return whether a step of the job is in the history of all its replicas, whichever of them has saved it."""
        return self.slice_number is not None and record.lineage == self._lineage

    def is_reused(self, generation: int) -> bool:
        """Return whether a step of this generation shows that another world had the generation of this one.

        Replicas of other slices may have later generations.
        """
        return generation == self.generation or (self.slice_number is None and generation > self.generation)

    def find_running(self) -> frozenset[int]:
        """Return the generations of the newest worlds of other slices, which may be writing.

        Raises:
            OSError: the store does not respond.
        """
        if self.slice_number is None:
            return frozenset()
        return frozenset(marker.generation for marker in self._list_markers() if not self._excludes(marker))

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
        for marker in self._list_markers():
            if marker.generation < self.generation and self._excludes(marker):
                with suppress(OSError):  # an old marker does no harm
                    self._store.delete(marker.name)

    def check(self) -> None:
        """Check that no other world has the generation, that no later one exists, and that this job owns the folder.

        Raises:
            TrainingError: this world is fenced off.
            OSError: the store does not respond.
        """
        # The marker first: a later world deletes it after it has created its own.
        if self._has_other_marker():
            raise self.reused_error()
        markers = self._list_markers()
        if any(marker.generation == self.generation and marker.name != self._marker for marker in markers):
            raise self.reused_error(max(marker.generation for marker in markers))
        later = [marker for marker in markers if marker.generation > self.generation and self._excludes(marker)]
        if later:
            newest = max(later, key=lambda marker: marker.generation)
            raise self._fenced_off_error(
                f"generation {newest.generation} of {newest.scope} is there, and this is generation {self.generation}. "
                "If no other pod of the job runs, its status was lost; the next world has a later generation, and "
                "resumes.",
                max(marker.generation for marker in markers),
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

    def _excludes(self, marker: Marker) -> bool:
        """Return whether its world and this one never run at the same time: only worlds of two slices do."""
        return self.slice_number is None or marker.slice in (None, self.slice_number)

    def _list_markers(self) -> list[Marker]:
        """Return the markers of the worlds of this job."""
        found = ((NAME.fullmatch(entry.name), entry.name) for entry in self._store.list_folder(is_current=True))
        return [
            Marker(generation, parse_number(match["slice"] or ""), name)
            for match, name in found
            if match and match["uid"] == self.job_uid and (generation := parse_number(match["generation"])) is not None
        ]

    def _fenced_off_error(self, reason: str, newest_generation: int = 0) -> TrainingError:
        return TrainingError(
            FailureReason.STORAGE,
            f"this world may not write to {self._store.root} any more: {reason}",
            path="spec.checkpoint.uri",
            value=self._store.root,
            fatal=False,
            newest_generation=newest_generation,
        )
