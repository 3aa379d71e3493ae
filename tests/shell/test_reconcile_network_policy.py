"""Each job's pods have a NetworkPolicy, from before their start."""

from dataclasses import replace

from tests.support.builders import NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_operator.core.names import network_policy
from trainingjob_operator.render.render_settings import NetworkRules, RenderSettings
from trainingjob_operator.shell.interfaces import ForbiddenError
from trainingjob_operator.shell.reconcile import Reconciler


async def test_pods_of_a_job_get_a_network_policy_before_they_exist_and_when_its_rules_change() -> None:
    sim = Simulation(total=60)
    rules = NetworkRules()
    settings = RenderSettings("image", "https://here", "pem")
    sim.reconciler = Reconciler(sim.cluster, sim.hub, lambda: replace(settings, network=rules), sim.time.now)
    await sim.run_until_step(5)
    assert sim.cluster.writes.index("apply NetworkPolicy") < sim.cluster.writes.index("create JobSet")
    assert sim.cluster.writes.count("apply NetworkPolicy") == 1

    rules = NetworkRules(egress=())
    await sim.reconciler.reconcile(NAMESPACE, NAME)
    await sim.reconciler.reconcile(NAMESPACE, NAME)

    stored = sim.cluster.objects["NetworkPolicy", network_policy(NAME, UID)]
    assert stored["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert sim.cluster.writes.count("apply NetworkPolicy") == 2


async def test_pods_wait_for_a_network_policy_that_is_rejected() -> None:
    sim = Simulation(total=60)
    settings = RenderSettings("image", "https://here", "pem", network=NetworkRules())
    sim.reconciler = Reconciler(sim.cluster, sim.hub, lambda: settings, sim.time.now)

    def reject(write: str) -> None:
        if write == "apply NetworkPolicy":
            raise ForbiddenError("cannot patch resource networkpolicies")

    sim.cluster.before = reject
    await sim.run(20)

    assert not any(kind == "JobSet" for kind, _ in sim.cluster.objects)
    assert "cannot patch resource networkpolicies" in str(sim.cluster.objects["TrainingJob", NAME]["status"])
