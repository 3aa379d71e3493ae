"""Jobs in a store, and the metrics that an operator exports of them."""

from datetime import UTC, datetime
from typing import Any

from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.metrics import Metrics
from trainingjob_operator.shell.store import KindStore

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEFORE, AFTER = "2026-11-21T11:00:00Z", "2026-11-21T13:00:00Z"
STATUS = {
    "phase": "Running",
    "progress": {
        "step": 120,
        "of": 300,
        "loss": 2.5,
        "tokensPerSecond": 4100.0,
        "stepSeconds": 0.5,
        "mfu": 0.41,
        "dataLoadingShare": 0.2,
        "skipped": 2,
        "saveSeconds": 1.5,
    },
    "goodput": {"ratio": 0.9, "seconds": {"training": 90.0, "compiling": 6.0, "starting": 4.0}},
    "checkpoint": {"step": 100, "time": "2026-11-21T12:00:10.500Z"},
    "world": {"generation": 3, "slices": [0, 1]},
    "straggler": {"slice": 1, "host": 0, "ratio": 0.4},
    "nodes": [{"node": "a", "faults": 1}, {"node": "b", "faults": 2}],
}
SLICES = {"min": 1, "max": 4}
J = {"namespace": "research", "name": "llama"}


class Jobs:
    """A store of jobs, with its metrics."""

    def __init__(self) -> None:
        self.shelf = KindStore(TRAINING_JOB)
        self.now = START
        self.metrics = Metrics("1.2.3")
        self.begin = self.metrics.register_jobs(self.shelf, lambda: self.now)
        self.version = 0

    def put(self, name: str = "llama", created: str = AFTER, **status: Any) -> dict[str, Any]:
        self.version += 1
        metadata = {"name": name, "namespace": "research", "uid": f"uid-{name}", "creationTimestamp": created}
        job = {"metadata": {**metadata, "resourceVersion": str(self.version)}, "status": status}
        job["spec"] = {"slices": SLICES}
        self.shelf.put(job)
        return job

    def read(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    found[frozenset(sample.labels.items())] = sample.value
        return found


def labelled(value: float, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(labels.items()): value}


def restarted(*reasons: str) -> dict[str, Any]:
    """Return the fields of a job that has restarted for these reasons, and trains in the world after them."""
    begun = {"slices": 2, "started": BEFORE}
    ended = [
        {**begun, "generation": number, "ended": AFTER, "cause": {"reason": reason}, "restarted": True}
        for number, reason in enumerate(reasons, 1)
    ]
    return {"attempts": [*ended, {**begun, "generation": len(reasons) + 1}], "restarts": {"total": len(reasons)}}
