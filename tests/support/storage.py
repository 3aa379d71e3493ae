"""The storage of a simulated job: the saved steps of each world, and restores by the rules of the trainer."""

from tests.support.builders import UID
from trainingjob_api.world import Span, World
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance, is_in_history

type Key = tuple[int, int]
"""A world's number, and a step."""


class Storage:
    """Saved steps, and where each world that trained began."""

    def __init__(self) -> None:
        """Begin empty."""
        self.commits: dict[Key, Provenance] = {}
        self._pasts: dict[int, Provenance] = {}
        self._origins: dict[int, Key] = {}

    def restore(self, world: World) -> tuple[int, tuple[Span, ...]]:
        """Return the step that a world resumes from, and the worlds that led to it and are missing in its lineage."""
        mine = [(g, s) for g, s in self.commits if is_in_history(saved(g, s), world, takeover=False)]
        origin = self._origins[world.generation] = max(mine, default=(0, 0))
        past = extend_provenance(self.commits.get(origin, Provenance()), world, ((1, 1),), *origin, "durable")
        self._pasts[world.generation] = past
        return origin[1], past.spans[:-1]

    def save(self, generation: int, step: int) -> None:
        """Save a step of a world that has restored: one that it has trained itself."""
        if step > self._origins[generation][1]:
            self.commits[generation, step] = self._pasts[generation]

    def list_spans(self, generation: int) -> list[tuple[int, int, int | None]]:
        """Return the spans of the steps in a world's state, by actual training: world, first step, last step."""
        spans: list[tuple[int, int, int | None]] = []
        last = None
        while generation:
            origin, step = self._origins[generation]
            spans.insert(0, (generation, step + 1, last))
            generation, last = origin, step
        return spans


def saved(generation: int, step: int) -> Integrity:
    """Return the record of a saved step."""
    return Integrity(job_uid=UID, generation=generation, step=step, data="", state="", files={})
