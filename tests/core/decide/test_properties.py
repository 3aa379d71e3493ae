"""What holds whatever happens: one world at a time, of a proved size, of hosts that are ready, and in time."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.builders import failure, make_plan, pod_manifest
from tests.support.scenes import Scene, avoid
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.core.decide.decisions import Claim, Decision, DrainWorld, EndWorld, Fail
from trainingjob_operator.core.decide.restarts import MAX_RESTART_BACK_OFF_SECONDS
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan

WINDOW = 5.0
SHRINK_AFTER = 60.0
EVENTS = ("lose slice", "lose host", "crash", "crash", "fall silent", "return", "save", "wait", "wait long", "avoid")
PLANS = {
    "one or two slices": (1, 2, ()),
    "two or three slices": (2, 3, ()),
    "one, two or four slices": (1, 4, (1, 2, 4)),
    "three slices": (3, 3, ()),
}
corners = st.integers(0, 3)
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 1)), max_size=12)


class Story:
    """A job under random events. After each event the operator decides, and the hosts apply its directives."""

    def __init__(self, plan: Plan) -> None:
        self.scene = Scene(plan=plan)
        self.numbers = count()
        self.generations = [0]
        for number in range(plan.spec.slices.max_slices):
            self.bring(number)

    def bring(self, number: int) -> None:
        """Give a slice new pods that are ready."""
        scene = self.scene
        scene.place(number)
        for host in range(scene.plan.shape.num_hosts):
            scene.pods[number, host] = pod_manifest(scene.plan, number, host, uid=f"uid-{next(self.numbers)}")
            scene.hear(number, host, still=100.0)

    def happen(self, event: str, number: int, host: int) -> None:
        """Apply a random event to a slice or to one of its hosts."""
        scene = self.scene
        hosts = [key for key in scene.pods if key[0] == number % scene.plan.spec.slices.max_slices]
        match event:
            case "lose slice":
                for key in hosts:
                    del scene.pods[key]
            case "lose host" if hosts:
                del scene.pods[hosts[host % len(hosts)]]
            case "crash" if hosts:
                self.crash(*hosts[host % len(hosts)])
            case "fall silent" if len(hosts) == scene.plan.shape.num_hosts:
                scene.silence(hosts[0][0], age=WINDOW + 1)
            case "return":
                self.bring(number % scene.plan.spec.slices.max_slices)
            case "save" if scene.see().world:
                self.train(30, committed=20)
            case "avoid":
                avoid(scene, *(scene.pods[key]["spec"]["nodeName"] for key in hosts))
            case "wait" | "wait long":
                self.look(10.0 if event == "wait" else 200.0)

    def crash(self, number: int, host: int) -> None:
        world = self.scene.see().world
        if world and number in world.slices:
            words = f"ValueError: number {next(self.numbers)}"
            self.scene.hear(number, host, phase=Phase.FAILED, failure=failure(message=words), still=1.0)

    def train(self, step: int, committed: int | None = None) -> None:
        """Let the members that still have their pods train from step 10."""
        world = self.scene.see().world
        for member in world.members if world else ():
            if (member.slice, member.host) in self.scene.pods:
                self.scene.hear(
                    member.slice,
                    member.host,
                    generation=world.generation if world else 0,
                    phase=Phase.TRAINING,
                    progress=Progress(step=step, step_seconds=0.5),
                    restored=10,
                    committed=committed,
                    failure=None,
                )

    def look(self, seconds: float = 1.0) -> Decision:
        """Let the operator observe, check its decision, and let the hosts apply it."""
        before = self.scene.see()
        decision = self.scene.step(seconds)
        if isinstance(decision, Claim):
            self.check(before, decision)
            self.train(20)
        elif isinstance(decision, DrainWorld):
            self.apply_directives(before, Phase.LEFT)
        elif isinstance(decision, EndWorld):
            self.apply_directives(before, Phase.IDLE)
        return decision

    def apply_directives(self, seen: Observed, phase: Phase) -> None:
        for seat in seen.member_views:
            if seat.pod and (seat.member.slice, seat.member.host) in self.scene.pods and seat.report:
                self.scene.hear(seat.member.slice, seat.member.host, phase=phase, failure=None, still=100.0)

    def check(self, before: Observed, decision: Claim) -> None:
        """Raise unless a claim is legal."""
        world, plan = decision.world, self.scene.plan
        assert world.generation > self.generations[-1], "a number is never used again"
        self.generations.append(world.generation)
        assert (before.world is None) == (decision.end is None), "the world before has ended"
        assert len(world.slices) in plan.allowed_sizes, "the plan proved the size"
        ready = {one.number for one in before.slices if one.is_ready(WINDOW)}
        assert set(world.slices) <= ready, "all of its hosts are there"
        assert len(world.members) == len(world.slices) * plan.shape.num_hosts
        assert len({member.pod_uid for member in world.members}) == len(world.members)


@pytest.mark.parametrize(("fewest", "most", "allowed"), PLANS.values(), ids=PLANS.keys())
@settings(max_examples=12, deadline=None, derandomize=True)
@given(events, st.sampled_from(["shrink", "wait", "auto"]), st.sampled_from(["avoid", "report"]), corners, corners)
@example([*[("crash", 1, 1), ("save", 0, 0)] * 2], "shrink", "avoid", 0, 1)  # what is left is a slice on a bad node
def test_invariants_under_random_events(
    fewest: int,
    most: int,
    allowed: tuple[int, ...],
    story: Sequence[tuple[str, int, int]],
    policy: str,
    nodes: str,
    size: int,
    first: int,
) -> None:
    """In the end as many slices are permanently healthy as some size needs, and no others."""
    elastic = {"policy": policy, "shrinkAfter": f"{SHRINK_AFTER:.0f}s", "nodeExclusion": nodes, "maxRestarts": 1000}
    plan = make_plan(fewest, most, allowed=allowed, elastic={**elastic, "maxRestartsWithoutCommit": 1000})
    job = Story(plan)
    for event in story:
        job.look()
        job.happen(*event)
    job.look()

    num_well = plan.allowed_sizes[size % len(plan.allowed_sizes)]
    for number in range(most):
        job.happen("return" if (number - first) % most < num_well else "lose slice", number, 0)
    decisions = [job.look(MAX_RESTART_BACK_OFF_SECONDS + SHRINK_AFTER) for _ in range(3)]

    assert not any(isinstance(one, Fail) for one in decisions)
    world = job.scene.see().world
    assert world, f"it trains again: {decisions}"
    assert set(world.slices) <= {one.number for one in job.scene.see().slices if one.is_ready(WINDOW)}
