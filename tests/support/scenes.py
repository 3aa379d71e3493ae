"""Scenes: a job, its cluster and its hosts at one moment, for tests of decisions."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tests.support.builders import (
    NOW,
    Manifest,
    failure,
    job_manifest,
    jobset_manifest,
    make_plan,
    make_report,
    pod_manifest,
    ready_node,
)
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.decide.child_maintenance import ChildOperation, list_child_operations
from trainingjob_operator.core.decide.decision_rules import decide
from trainingjob_operator.core.decide.decisions import (
    Claim,
    CollectDiagnostics,
    Decision,
    DrainWorld,
    EndWorld,
    Fail,
    Wait,
)
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.core.observe.heartbeats import HeartbeatState, LatestReport
from trainingjob_operator.core.observe.nodes import find_avoid_signal
from trainingjob_operator.core.observe.observed import Observed, observe
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.replica_views import split_replicas
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.report.job_events import JobEvent, list_events
from trainingjob_operator.core.report.job_status import next_status
from trainingjob_operator.core.times import format_time

TAINT = "cloud.google.com/impending-node-termination"
"""What GKE puts on a node that is about to go."""
AVOID_SIGNAL = NodeSignal("label", "node.example/burn-in", effect="avoid")
"""A signal of an administrator against new pods."""


@dataclass
class Scene:
    """A job, its cluster and its hosts at one moment; tests change it step by step and check the decisions."""

    plan: Plan = field(default_factory=make_plan)
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: dict[tuple[int, int], Manifest] = field(default_factory=dict)
    more_pods: list[Manifest] = field(default_factory=list)
    nodes: dict[str, Manifest] = field(default_factory=dict)
    own_node: Manifest | None = None
    jobsets: dict[int, Manifest] = field(default_factory=dict)
    jobs: list[Manifest] = field(default_factory=list)
    preparation: Manifest | None = None
    preparation_pods: list[Manifest] = field(default_factory=list)
    warnings: list[Manifest] = field(default_factory=list)
    workloads: list[Manifest] = field(default_factory=list)
    news: dict[str, LatestReport] = field(default_factory=dict)
    listening: float = 1000.0
    announced: float = 1000.0
    burned: int = 0
    annotations: dict[str, str] = field(default_factory=dict)
    now: datetime = NOW

    def place(self, *slices: int) -> "Scene":
        """Create the JobSets, pods and nodes of slices."""
        fewest = self.plan.num_base_slices
        for number in slices:
            self.jobsets[number if number >= fewest else 0] = jobset_manifest(self.plan, number)
            for host in range(self.plan.shape.num_hosts):
                self.pods[number, host] = pod_manifest(self.plan, number, host)
                self.nodes[f"node-{number}-{host}"] = ready_node(f"node-{number}-{host}")
        return self

    def hear(self, slice_number: int, host: int, *, age: float = 0.2, still: float = 0.2, **changes: Any) -> "Scene":
        """Record a report of a host's pod; fields of its previous report stay unless `changes` replace them."""
        uid = self.pods[slice_number, host]["metadata"]["uid"]
        known = self.news.get(uid)
        report = known.report.model_copy(update=changes) if known else make_report(slice_number, host, uid, **changes)
        self.news[uid] = LatestReport(report, age, still)
        return self

    def hear_slice(self, *slices: int, **changes: Any) -> "Scene":
        """Record the same report for all hosts of slices."""
        for number in slices:
            for host in range(self.plan.shape.num_hosts):
                self.hear(number, host, **changes)
        return self

    def children(self) -> Children:
        """Return the objects of the cluster."""
        return Children(
            jobsets=tuple(self.jobsets.values()),
            jobs=tuple(self.jobs),
            pods=(*self.pods.values(), *self.more_pods),
            nodes=self.nodes,
            own_node=self.own_node,
            preparation=self.preparation,
            preparation_pods=tuple(self.preparation_pods),
            warnings=tuple(self.warnings),
            workloads=tuple(self.workloads),
            added_signals=(AVOID_SIGNAL,),
            avoided_nodes=frozenset(
                name for name, node in self.nodes.items() if find_avoid_signal(node, (AVOID_SIGNAL,))
            ),
        )

    def heartbeats(self) -> HeartbeatState:
        """Return the reports of all hosts."""
        return HeartbeatState(self.news, self.listening, self.announced, self.burned)

    def see(self) -> Observed:
        """Return the observation."""
        job = job_manifest(self.plan)
        job["metadata"]["annotations"] = self.annotations
        seen = observe(self.plan, job, self.status, self.children(), self.heartbeats(), self.now)
        return split_replicas(self.plan, seen)

    def decide(self) -> Decision:
        """Return the decision."""
        return decide(self.plan, self.see(), self.now)

    def chores(self) -> tuple[ChildOperation, ...]:
        """Return the maintenance of children."""
        return list_child_operations(self.plan, self.see(), self.decide())

    def happenings(self, refusal: ObjectProblem | None = None) -> tuple[JobEvent, ...]:
        """Return the events of the next step, without taking it."""
        seen = self.see()
        decision = decide(self.plan, seen, self.now)
        written = next_status(self.plan, seen, decision, self.now)
        return list_events(self.plan, seen, decision, written, refusal)

    def step(self, seconds: float = 0.0) -> Decision:
        """Let time pass, decide, and apply the status."""
        self.now += timedelta(seconds=seconds)
        seen = self.see()
        decision = decide(self.plan, seen, self.now)
        self.status = next_status(self.plan, seen, decision, self.now)
        if isinstance(decision, Claim):
            assert self.see().world == decision.world, "hosts that ask later must receive the same world"
        return decision

    def form(self, *slices: int, step: int = 10, restored: int = 0) -> "Scene":
        """Form a world of idle slices, and let it train."""
        self.place(*slices).hear_slice(*slices, phase=Phase.IDLE, still=1000.0)
        claim = self.step()
        assert isinstance(claim, Claim), claim
        self.train(step=step, restored=restored)
        self.step()
        return self

    def train(self, *, step: int, restored: int = 0, **changes: Any) -> "Scene":
        """Let the members of the committed world train."""
        assert self.status.world
        progress = Progress(step=step, loss=2.5, step_seconds=0.5, tokens_per_second=1000.0)
        changes = {"phase": Phase.TRAINING, "progress": progress, "restored": restored, **changes}
        return self.hear_slice(*self.status.world.slices, generation=self.status.world.generation, **changes)

    def silence(self, slice_number: int, age: float = 6.0) -> "Scene":
        """Stop the reports of a slice for a while."""
        for host in range(self.plan.shape.num_hosts):
            uid = self.pods[slice_number, host]["metadata"]["uid"]
            self.news[uid] = replace(self.news[uid], report_age=age, stalled_for=age)
        return self

    def pod(self, slice_number: int, host: int) -> Manifest:
        """Return a pod's manifest, to change it."""
        return self.pods[slice_number, host]

    def delete_pod(self, slice_number: int, host: int, seconds_left: float = 30.0) -> "Scene":
        """Mark a pod as terminating."""
        deadline = format_time(self.now + timedelta(seconds=seconds_left))
        self.pods[slice_number, host]["metadata"]["deletionTimestamp"] = deadline
        return self


def kind(decision: Decision) -> tuple[object, ...]:
    """Return a decision without its message."""
    match decision:
        case Claim(world, _, end):
            return Claim, world.slices, end.cause.reason if end else None, end.is_counted if end else None
        case Wait(reason) | DrainWorld(reason) | CollectDiagnostics(reason) | EndWorld(_, reason) | Fail(reason):
            return type(decision), reason
        case _:
            return (type(decision),)


def lose_node(scene: Scene, slice_number: int, host: int) -> Scene:
    name = f"node-{slice_number}-{host}"
    scene.nodes[name] = ready_node(name, ready=False)
    return scene


def operate_from(scene: Scene, *, ready: bool, age: float) -> Scene:
    """Let the operator run on a node that has been ready, or reported as lost, for the given seconds."""
    scene.own_node = ready_node("system-1", ready=ready, since=scene.now - timedelta(seconds=age))
    return scene


def trained(**changes: object) -> Scene:
    return Scene(**changes).form(0, 1)  # type: ignore[arg-type]


def fail(scene: Scene, slice_number: int, host: int, still: float = 0.1, **more: object) -> Scene:
    return scene.hear(slice_number, host, phase=Phase.FAILED, failure=failure(**more), still=still)  # type: ignore[arg-type]


def delete_all(scene: Scene, slice_number: int) -> Scene:
    """Delete the remaining pods of a slice."""
    for place in [place for place in scene.pods if place[0] == slice_number]:
        del scene.pods[place]
    return scene


def drop_pod(scene: Scene, slice_number: int, host: int) -> Scene:
    del scene.pods[slice_number, host]
    return scene


def set_pod(scene: Scene, slice_number: int, host: int, **status: object) -> Scene:
    scene.pod(slice_number, host)["status"].update(status)
    return scene


def claim(scene: Scene) -> Claim:
    decision = scene.decide()
    assert isinstance(decision, Claim), decision
    return decision


def shrunk(**changes: object) -> Scene:
    """Return a job that trains on slice 0 after slice 1 was lost, and slice 1 reports again."""
    scene = Scene(**changes).form(0, 1).silence(1).hear_slice(0, still=6.0)  # type: ignore[arg-type]
    assert isinstance(scene.step(), Claim)
    scene.train(step=20, restored=10)
    scene.step(1.0)
    for host in range(2):
        scene.pods[1, host] = pod_manifest(scene.plan, 1, host, uid=f"new-1-{host}")
        scene.hear(1, host)
    return scene


def edited(scene: Scene, *sizes: int, **changes: object) -> Scene:
    scene.plan = make_plan(*sizes, **changes)
    return scene


def announce(scene: Scene, name: str) -> Scene:
    scene.nodes[name] |= {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}
    return scene


def avoid(scene: Scene, *names: str) -> Scene:
    """Ask to place nothing new on nodes."""
    for name in names:
        scene.nodes.setdefault(name, ready_node(name))["metadata"]["labels"] = {AVOID_SIGNAL.key: "true"}
    return scene
