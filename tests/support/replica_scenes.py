"""Scenes of jobs whose slices train as replicas."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.support.scenes import Scene, kind
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.core.decide.decisions import Decision, RunReplicas
from trainingjob_operator.core.observe.replica_views import find_replica
from trainingjob_operator.core.planner.plan import Plan


def replicated(plan: Plan) -> Plan:
    """Return a plan whose slices train as replicas."""
    layout = plan.sizes[0].layout
    return replace(plan, has_replicas=True, sizes=tuple(replace(size, layout=layout) for size in plan.sizes))


@dataclass
class ReplicaScene(Scene):
    """A job whose slices train as replicas."""

    def run(self, *slices: int, step: int = 10, **changes: object) -> "ReplicaScene":
        """Let the worlds of slices train."""
        for number in slices:
            progress = Progress(step=step, loss=2.5, step_seconds=0.5)
            known = {
                "phase": Phase.TRAINING,
                "progress": progress,
                "restored": 0,
                "generation": self.generation(number),
            }
            self.hear_slice(number, **(known | changes))
        return self

    def generation(self, number: int) -> int:
        """Return the generation of a slice's newest world."""
        replica = find_replica(self.status, number)
        return replica.world.generation if replica else 0

    def start(self, *slices: int) -> "ReplicaScene":
        """Form the worlds of slices, and let them train."""
        self.place(*slices).hear_slice(*slices, phase=Phase.IDLE, still=1000.0)
        self.step()
        self.run(*slices)
        self.step()
        return self


def list_kinds(decision: Decision) -> list[tuple[object, ...]]:
    """Return the decision about each slice without its message."""
    assert isinstance(decision, RunReplicas), decision
    return [kind(one.decision) for one in decision.replicas]


def kinds_of(now: ReplicaScene) -> list[tuple[object, ...]]:
    """Decide, apply the status, and return the decision about each slice."""
    return list_kinds(now.step())


def names(kinds: Iterable[tuple[object, ...]]) -> list[str]:
    """Return the reason of a wait, or the name of another decision, for each slice."""
    return [
        str(one[1]) if getattr(one[0], "__name__", "") == "Wait" else getattr(one[0], "__name__", "") for one in kinds
    ]
