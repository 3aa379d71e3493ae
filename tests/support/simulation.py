"""A job's whole life in simulated time: the real operator core and shell, the real rules of agents, a small cluster.

Only the training is simulated: a world trains a step each second while all its children live, commits every few steps,
and resumes from the newest commit of its lineage.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from e2e.soak.invariants import find_impossible_states
from tests.support import shadowing
from tests.support.agents import Agent, Child, having_waited
from tests.support.builders import KEY, NAME, NAMESPACE, UID, spec_manifest
from tests.support.fake_cluster import GRACE_SECONDS, FakeCluster, Node, OperatorKilledError, Time, copied
from tests.support.storage import Storage
from trainingjob_agent.host import initial_state
from trainingjob_agent.host_report import HostIdentity, make_report
from trainingjob_agent.state import AnswerReceived, ChildExited, EventReceived, Host, Terminated, TimerFired
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Answer, Failure, FailureReason, Phase, ProcessState, Progress
from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import World
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.observe.members import hash_members
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.core.times import format_time
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.fenced_cluster import FencedCluster
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Caller, ClusterUnavailableError, Manifest
from trainingjob_operator.shell.reconcile import Reconciler

TICK = 0.5
IMPORT_SECONDS = 2.0
COMPILE_SECONDS = 2.0
COMMIT_EVERY = 4


SETTINGS = RenderSettings("image", "https://here", "pem")


@dataclass
class Simulation:
    """A cluster, a job, its agents and an operator."""

    spec: Manifest = field(default_factory=dict)
    time: Time = field(default_factory=Time)
    total: int = 20
    step_seconds: float = 1.0
    save_seconds: float = 0.0  # of a world that leaves; a pod that is deleted is there for two seconds more

    def __post_init__(self) -> None:
        training = {"steps": self.total, "globalBatchSize": 16, "sequenceLength": 32}
        elastic = {"growCooldown": "5s", "maxRestarts": 100, "maxRestartsWithoutCommit": 100}
        sections = {"training": training, "elastic": elastic, **self.spec}
        self.cluster = FakeCluster(self.time)
        self.cluster.put(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1},
                "spec": spec_manifest(**sections),
            }
        )
        self.agents: dict[str, Agent] = {}
        self.storage = Storage()
        self.steps: dict[int, float] = {}
        self.saving: dict[int, float] = {}
        self.announced: dict[int, str] = {}
        self.is_leading = True
        self.num_checked = 0
        self.checked = TrainingJobStatus()
        self.written: dict[int, str] = {}
        self._read: tuple[Manifest | None, TrainingJobStatus] = (None, TrainingJobStatus())
        self.restart_operator()

    # The operator

    def restart_operator(self) -> None:
        """Start an operator without memory."""
        self.hub = Hub(self.time.monotonic, self._wake)
        fenced = FencedCluster(self.cluster, lambda: self.is_leading)
        self.reconciler = Reconciler(
            fenced, self.hub, lambda: SETTINGS, self.time.now, clock_adjustment=lambda: self.time.skew
        )
        self.due = self.time.seconds
        self.operator_up = True

    def _wake(self, namespace: str, name: str) -> None:
        self.due = self.time.seconds

    async def look(self) -> None:
        """Let the operator reconcile the job, if it is up and due."""
        if not self.operator_up or self.time.seconds < self.due:
            return
        try:
            again = await self.reconciler.reconcile(NAMESPACE, NAME)
        except ClusterUnavailableError:
            again = 1.0
        except OperatorKilledError:
            self.operator_up = False
            return
        self.due = self.time.seconds + (1000.0 if again is None else again)

    # Time

    async def tick(self) -> None:
        """Let half a second pass."""
        self.time.seconds += TICK
        self.cluster.tick()
        self._run_agents()
        self._train()
        await self.report()
        await self.look()
        self.check()

    async def report(self) -> None:
        """Let every host report to the operator, and handle its answer."""
        for agent in list(self.agents.values()):
            await self._report(agent)
            self._exit_if_finished(agent)

    async def run(self, seconds: float, until: str = "") -> None:
        """Let time pass until the job has a phase."""
        end = self.time.seconds + seconds
        while self.time.seconds < end and not (until and self.status.phase == until):
            await self.tick()

    async def run_until_step(self, step: int, seconds: float = 120.0) -> None:
        """Let time pass until training has made a step."""
        end = self.time.seconds + seconds
        while self.newest_step < step:
            assert self.time.seconds < end, f"no step {step}: {self.status}"
            await self.tick()

    @property
    def job(self) -> Manifest:
        """Return the TrainingJob."""
        return self.cluster.objects["TrainingJob", NAME]

    @property
    def status(self) -> TrainingJobStatus:
        """Return the job's status."""
        raw = self.job.get("status")
        if self._read[0] is not raw:  # each write brings another object
            self._read = raw, read_status(self.job)
        return self._read[1]

    @property
    def newest_step(self) -> int:
        """Return the newest step of all agents."""
        steps = [
            a.state.active.progress.step for a in self.agents.values() if a.state.active and a.state.active.progress
        ]
        return max(steps, default=0)

    def condition(self, kind: str) -> tuple[str, str]:
        """Return the status and the reason of a condition."""
        found = next(one for one in self.status.conditions if one.type == kind)
        return found.status, found.reason

    # Invariants

    def check(self) -> None:
        """Raise if a status is wrong, by itself or after the previous one, or if a host got an unwritten directive."""
        for written in self.cluster.statuses[self.num_checked :]:
            status = TrainingJobStatus.model_validate(written)  # within the bounds of the schema
            wrong = list(find_impossible_states(self.checked, status))
            assert not wrong, wrong
            attempts = status.attempts
            assert len({attempt.generation for attempt in attempts}) == len(attempts), "one attempt a world"
            if status.lineage:
                told = [(span.generation, span.first, span.last) for span in status.lineage]
                assert told == self.storage.list_spans(status.lineage[-1].generation), "the lineage is what happened"
            worlds = (status.world, *(replica.world for replica in status.replicas))
            self.written |= {world.generation: world.members for world in worlds if world}
            self.checked = status
        self.num_checked = len(self.cluster.statuses)
        assert self.announced.items() <= self.written.items(), "what is announced is written, with the same members"

    # Faults

    def kill_node(self, name: str) -> None:
        """Cut a node's power."""
        node = self.cluster.nodes[name]
        node.up, node.down_since = False, self.time.seconds
        for agent in self._agents_on(name):
            del self.agents[agent.pod_uid]

    def restore_node(self, name: str) -> None:
        """Restore power of a node: kubelet restarts its pods' containers."""
        self.cluster.nodes[name].up = True

    def partition_node(self, name: str) -> None:
        """Partition a node from the cluster and the operator; its processes keep running."""
        node = self.cluster.nodes[name]
        node.reachable, node.down_since = False, self.time.seconds
        self.cut_off(name)

    def heal_node(self, name: str) -> None:
        """Reconnect a node; its deleted pods end."""
        self.cluster.nodes[name].reachable = True
        self.cut_off(name, cut_off=False)

    def cut_off(self, name: str, *, cut_off: bool = True) -> None:
        """Cut the hosts on a node off from the operator, or connect them again."""
        for agent in self._agents_on(name):
            agent.cut_off = cut_off

    def crash_child(self, name: str, message: str, reason: FailureReason = FailureReason.CRASH) -> bool:
        """Let the child on a node fail; return whether there was one."""
        for agent in self._agents_on(name):
            child = agent.active()
            if child and child.phase not in (Phase.LEFT, Phase.DONE):
                del agent.children[child.number]
                agent.hear(
                    ChildExited(child.number, code=1, failure=Failure(reason=reason, message=message)),
                    self.time.seconds,
                )
                return True
        return False

    def stop_child(self, name: str) -> bool:
        """Stall the child on a node, and its world with it; return whether one made steps there."""
        children = [a.active() for a in self._agents_on(name) if a.state.active and a.state.active.progress]
        for child in filter(None, children):
            child.state = ProcessState.STOPPED
        return any(children)

    def run_out_of_memory(self, name: str) -> None:
        """Kill all processes of the container on a node; kubelet restarts it."""
        pod = self.cluster.pod_of(name)
        assert pod
        ended = {"exitCode": 137, "reason": "OOMKilled"}
        pod["status"]["containerStatuses"] = [{"state": {"running": {}}, "lastState": {"terminated": ended}}]
        self.cluster.touch(pod)
        for agent in self._agents_on(name):
            del self.agents[agent.pod_uid]

    def delete_pod(self, name: str) -> None:
        """Delete the pod on a node, as a drain does."""
        pod = self.cluster.pod_of(name)
        if pod is not None:
            deadline = self.time.now() + timedelta(seconds=GRACE_SECONDS)
            pod["metadata"].setdefault("deletionTimestamp", format_time(deadline))

    def _agents_on(self, node: str) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.node == node]

    # Agents and training

    def _run_agents(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self.cluster.all("Pod")}
        for uid, agent in tuple(self.agents.items()):
            if uid not in pods and self.cluster.nodes[agent.node].reachable:
                del self.agents[uid]
        for uid, pod in pods.items():
            node = self.cluster.nodes.get(pod["spec"].get("nodeName", ""))
            if pod["status"]["phase"] == "Running" and node and node.up and node.reachable and uid not in self.agents:
                self._start_agent(pod, node)
        for agent in list(self.agents.values()):
            pod = pods.get(agent.pod_uid)
            if pod and self.cluster.nodes[agent.node].reachable and pod["metadata"].get("deletionTimestamp"):
                agent.hear(Terminated(), self.time.seconds)
            agent.hear(TimerFired(), self.time.seconds)
            for child in list(agent.children.values()):
                ready = not child.world and not child.shadow and self.time.seconds - child.born >= IMPORT_SECONDS
                if ready:
                    agent.hear(EventReceived(child.number, AgentEvent(ready=True)), self.time.seconds)
        for joined in shadowing.list_joined(self.agents.values(), self.time.seconds - COMPILE_SECONDS):
            self._say(joined, AgentEvent(waiting=True))

    def end_shadow(self, name: str) -> bool:
        """End the hot standby process on a node; return whether there was one."""
        return any(shadowing.end(agent, self.time.seconds) for agent in self._agents_on(name))

    def _exit_if_finished(self, agent: Agent) -> None:
        if agent.exit_code is None:
            return
        for pod in self.cluster.all("Pod"):
            if pod["metadata"]["uid"] == agent.pod_uid:
                pod["status"]["phase"] = "Succeeded" if agent.exit_code == 0 else "Failed"
        del self.agents[agent.pod_uid]

    def _start_agent(self, pod: Manifest, node: Node) -> None:
        labels = pod["metadata"]["labels"]
        number = int(labels[SLICE_OFFSET_LABEL]) + int(labels[JOB_INDEX_LABEL])
        uid = pod["metadata"]["uid"]
        place = HostIdentity(
            pod["metadata"]["name"], number, int(labels[HOST_LABEL]), pod["status"]["podIP"], str(self.time.seconds)
        )
        remembered = pod.get("ledger", 0)
        shadows = bool(self.job["spec"].get("elastic", {}).get("hotStandby"))
        host = Host(UID, uid, "1Gi", drills_allowed=True, hot_standbys_allowed=shadows)
        self.agents[uid] = Agent(uid, node.name, place, host, initial_state(remembered, self.time.seconds))

    def _train(self) -> None:
        worlds: dict[int, list[tuple[Agent, Child]]] = {}
        pods = {pod["metadata"]["uid"]: pod for pod in self.cluster.all("Pod")}
        for agent in self.agents.values():
            child = agent.active()
            if child and child.world:
                worlds.setdefault(child.world.generation, []).append((agent, child))
                if agent.pod_uid in pods:
                    pods[agent.pod_uid]["ledger"] = child.world.generation
        for generation, joined in worlds.items():
            world = joined[0][1].world
            assert world is not None
            if {child.process for _, child in joined} == {member.process for member in world.members}:
                self._advance(generation, world, joined)

    def _advance(self, generation: int, world: World, joined: list[tuple[Agent, Child]]) -> None:
        """Let a complete world make progress: restore, compile, train a step, commit, drain, or complete."""
        now = self.time.seconds
        begun = max(child.started for _, child in joined)
        shadowing.check(world, [child for _, child in joined])
        compiling = 0.0 if world.shadow else COMPILE_SECONDS
        if now - begun < compiling or any(child.state is ProcessState.STOPPED for _, child in joined):
            return
        if generation not in self.steps:
            restored, unheard = self.storage.restore(world)
            self.steps[generation] = float(restored)
            self._say(joined, AgentEvent(phase=Phase.TRAINING, restored=restored, missing_lineage=unheard))
            return
        if any(child.leave for _, child in joined):
            if now - self.saving.setdefault(generation, now) >= self.save_seconds:
                self._end(generation, world, joined, Phase.LEFT)
            return
        self.steps[generation] += TICK / self.step_seconds
        step, last = int(self.steps[generation]), _last_step(world)
        if step >= last:
            self._say(joined, AgentEvent(progress=Progress(step=last, loss=1.0, step_seconds=self.step_seconds)))
            self._end(generation, world, joined, Phase.DONE)
            return
        seconds = self.step_seconds
        measured = Progress(step=step, loss=2.0, step_seconds=seconds, typical_seconds=seconds)
        event = AgentEvent(progress=measured if step else None)
        if step and step % COMMIT_EVERY == 0:
            self.storage.save(generation, step)
            event = event.model_copy(update={"committed": step})
        late = [(agent, child) for agent, child in joined if now < agent.slow_until]
        if late and step:  # who comes late to a step waits for nobody, and all others for it
            self._say(late, having_waited(event, 0.0))
            self._say([one for one in joined if one not in late], having_waited(event, 0.5 * seconds))
        else:
            self._say(joined, event)

    def _end(self, generation: int, world: World, joined: list[tuple[Agent, Child]], phase: Phase) -> None:
        self.storage.save(generation, step := min(int(self.steps[generation]), _last_step(world)))
        self._say(joined, AgentEvent(phase=phase, committed=step))
        for agent, child in joined:
            agent.children.pop(child.number, None)
            agent.hear(ChildExited(child.number, code=0), self.time.seconds)

    def _say(self, joined: list[tuple[Agent, Child]], event: AgentEvent) -> None:
        for agent, child in joined:
            child.phase = event.phase or child.phase
            agent.hear(EventReceived(child.number, event), self.time.seconds)

    async def _report(self, agent: Agent) -> None:
        if agent.cut_off or not self.operator_up or self.time.seconds < agent.silent_until:
            return
        if self.hub.paused_seconds(KEY):
            return
        report = make_report(agent.host, agent.place, agent.state, 5000, agent.shadow_port)
        caller = Caller(agent.pod_uid, NAMESPACE, NAME, UID)
        self.hub.receive(caller, report)
        answer = await self.hub.answer(caller, report.instance, 0)
        if answer is not None:
            self._note(answer)
            agent.hear(AnswerReceived(answer), self.time.seconds)

    def _note(self, answer: Answer) -> None:
        if answer.world:
            members = hash_members(answer.world.members)
            assert self.announced.setdefault(answer.world.generation, members) == members, "one world a generation"

    def edit(self, **sections: object) -> None:
        """Change the job's spec, as `kubectl apply` does; None removes a section."""
        changed = {**copied(self.job["spec"]), **sections}
        self.job["spec"] = {name: value for name, value in changed.items() if value is not None}
        self.job["metadata"]["generation"] += 1
        self.cluster.touch(self.job)
        self.due = self.time.seconds

    def drill(self, kind: DrillKind, number: str = "one", **more: int) -> None:
        """Request a drill, as the command does."""
        asked = format_time(self.time.now())
        request = DrillRequest(id=number, job_uid=UID, kind=kind, requested=asked, **more)
        self.job["metadata"]["annotations"] = {DRILL_ANNOTATION: request.model_dump_json(by_alias=True)}
        self.cluster.touch(self.job)
        self.due = self.time.seconds


def _last_step(world: World) -> int:
    assert world.live
    return world.live.steps
