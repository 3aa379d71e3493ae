"""Each write of a whole life fails, is lost, or ends the operator: hosts never get a directive that is not written.

Of the status and of every object, each write is struck once, in its turn. The status in the API server always contains
the directives of the hosts.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from tests.support.builders import NAME, NAMESPACE
from tests.support.cases import sample
from tests.support.fake_cluster import OperatorKilledError
from tests.support.simulation import Simulation
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Answer, Directive, FailureReason
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.shell.interfaces import Children, ClusterUnavailableError, ConflictError

ELASTIC = {"growCooldown": "5s", "maxRestarts": 100, "maxRestartsWithoutCommit": 100}
PATIENCE_SECONDS = 240.0


@dataclass
class Life(Simulation):
    """A simulated job that checks every answer to a host against the stored status."""

    num_read: int = 0
    stored: list[TrainingJobStatus] = field(default_factory=list)
    num_told: int = 0

    def _note(self, answer: Answer) -> None:
        super()._note(answer)
        self.stored += map(TrainingJobStatus.model_validate, self.cluster.statuses[self.num_read :])
        self.num_read = len(self.cluster.statuses)
        self.num_told += 1
        unwritten = list(find_unwritten(answer, self.stored))
        assert not unwritten, unwritten

    async def until(self, holds: Callable[["Life"], object]) -> None:
        """Let time pass until a condition is true; a killed operator is restarted a second later."""
        end = self.time.seconds + PATIENCE_SECONDS
        down_since = None
        while not holds(self):
            assert self.time.seconds < end, self.status
            await self.tick()
            down_since = None if self.operator_up else down_since or self.time.seconds
            if down_since and self.time.seconds > down_since:
                self.restart_operator()


def find_unwritten(answer: Answer, stored: list[TrainingJobStatus]) -> Iterator[str]:
    """Yield the parts of an answer that no stored status ever contained."""
    if answer.directive is Directive.FINISH and not any(status.completion_time for status in stored):
        yield "the job is over"
    if answer.drill and not any(one.id == answer.drill.id for status in stored for one in status.drills):
        yield f"drill {answer.drill.id}"
    if world := answer.world:
        of_world = [status for status in stored if status.world and status.world.generation == world.generation]
        if not of_world:
            yield f"world {world.generation}"
        if not any(status.world and status.world.coordinator == world.coordinator for status in of_world):
            yield f"the coordinator of world {world.generation}"
        if not any(status.world and status.world.live == world.live for status in of_world):
            yield f"the live values of world {world.generation}"
        rollbacks = {(one.lineage, one.parent) for status in stored for one in status.rollbacks}
        yield from (f"rollback {one.lineage}" for one in world.rollbacks if (one.lineage, one.parent) not in rollbacks)
        spans = {(span.generation, span.first, span.last) for status in stored for span in status.lineage}
        reported = ((span.generation, span.first, span.last) for span in world.lineage)
        yield from (f"span {span}" for span in reported if span not in spans)


def trains(life: Life) -> bool:
    """Return whether a world has made a few steps."""
    return life.status.phase in ("Running", "Degraded") and life.newest_step >= 4


def size(slices: int) -> Callable[[Life], bool]:
    """Return whether a world of so many slices trains."""
    return lambda life: bool(life.status.world and len(life.status.world.slices) == slices and trains(life))


async def form_shrink_and_grow(life: Life) -> None:
    await life.until(size(2))
    life.kill_node("node-1-0")
    await life.until(size(1))
    life.restore_node("node-1-0")
    await life.until(size(2))


async def crash(life: Life) -> None:
    await life.until(trains)
    before = life.status.restarts.total
    assert life.crash_child("node-0-0", "ValueError: bad")
    await life.until(lambda life: life.status.restarts.total > before)


async def roll_back(life: Life) -> None:
    await life.until(lambda life: life.newest_step >= 10)
    life.crash_child("node-1-0", "loss or gradients were not finite", FailureReason.NON_FINITE)
    await life.until(lambda life: life.status.rollbacks)


async def drill(life: Life) -> None:
    await life.until(trains)
    life.drill(DrillKind.KILL_SLICE)
    await life.until(lambda life: life.status.drills)  # it is made at most once, and not again where that failed


async def suspend(life: Life) -> None:
    await life.until(trains)
    life.edit(suspend=True)
    await life.until(lambda life: life.status.phase == "Suspended")
    life.edit(suspend=None)


async def edit(life: Life) -> None:
    await life.until(trains)
    life.edit(elastic={"maxRestarts": -1})
    await life.until(lambda life: life.condition("Valid")[0] == "False")
    life.edit(elastic=ELASTIC, slices={"accelerator": "cpu", "topology": "2x2", "min": 1, "max": 1})
    await life.until(size(1))


async def shadow(life: Life) -> None:
    await life.until(lambda life: sum(1 for agent in life.agents.values() if agent.state.hot_standby) == 4)
    for host in (0, 1):
        life.kill_node(f"node-1-{host}")
    await life.until(lambda life: any(attempt.shadow for attempt in life.status.attempts))


type Story = Callable[[Life], Awaitable[None]]
STORIES: dict[str, tuple[Story, dict[str, object]]] = {
    "form, shrink, grow": (form_shrink_and_grow, {}),
    "crash": (crash, {}),
    "roll back": (roll_back, {"protection": {"nonFinite": "rollback"}}),
    "drill": (drill, {"elastic": {**ELASTIC, "faultInjection": "allowed"}}),
    "suspend": (suspend, {}),
    "edit": (edit, {}),
    "shadow": (shadow, {"elastic": {**ELASTIC, "hotStandby": True}}),
}
FAULTS: dict[str, tuple[str, type[BaseException]]] = {
    "fails": ("before", ClusterUnavailableError),
    "conflicts": ("before", ConflictError),
    "is lost": ("after", ClusterUnavailableError),
    "kills before it": ("before", OperatorKilledError),
    "kills after it": ("after", OperatorKilledError),
}


async def live(story: str, strike: Callable[[int, str], bool], where: str, error: type[BaseException]) -> Life:
    """Run a job with a fault at each affected write; it must complete.

    The certificates of the namespace are left out: test_reconcile_strikes.py has faults at that write. A fault at every
    second write can be in step with a resize forever, if an operator is killed at each decision.
    """
    reported, sections = STORIES[story]
    life = Life(dict(sections), total=60)
    number = 0

    def fault(write: str) -> None:
        nonlocal number
        if write.startswith("apply"):
            return
        number += 1
        if strike(number, write):
            raise error(write)

    setattr(life.cluster, where, fault)
    await reported(life)
    await life.until(lambda life: life.status.phase == "Succeeded")
    await life.run(5)
    assert life.num_told > 20
    return life


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("story", "fault", "turn"), sample(list(product(STORIES, FAULTS, ["second", "first"])), every=3)
)
async def test_every_second_write_of_a_life_is_struck(story: str, fault: str, turn: str) -> None:
    where, error = FAULTS[fault]
    struck: list[str] = []

    def strike(number: int, write: str) -> bool:
        is_hit = number % 2 == (turn == "second") and not (error is ConflictError and write.startswith("delete"))
        struck.extend([write] * is_hit)
        return is_hit

    await live(story, strike, where, error)

    assert {"status TrainingJob", "create JobSet"} & {*struck}


NUM_WRITES = 18


SINGLE_WRITES = list(product([name for name in FAULTS if name != "conflicts"], range(1, NUM_WRITES + 1)))


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "number"), sample(SINGLE_WRITES, every=4))
async def test_each_single_write_is_struck_again_and_again(fault: str, number: int) -> None:
    """Three times in a row, so that every host receives what would be announced meanwhile."""
    where, error = FAULTS[fault]
    await live("form, shrink, grow", lambda now, write: number <= now < number + 3, where, error)


async def test_jobset_that_is_missing_in_the_watch_is_read_once_per_reconciliation() -> None:
    life = Life(total=60)
    await life.until(lambda life: life.cluster.all("JobSet"))
    read = life.cluster.read_children

    async def read_late(namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        return replace(await read(namespace, uid, recorded_nodes), jobsets=(), jobs=(), pods=())

    life.cluster.read_children = read_late  # type: ignore[method-assign]
    life.cluster.writes.clear()
    await life.reconciler.reconcile(NAMESPACE, NAME)

    assert life.cluster.writes.count("create JobSet") == 1
    assert life.cluster.writes.count("status TrainingJob") <= 1
