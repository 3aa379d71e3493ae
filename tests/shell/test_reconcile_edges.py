"""Reconciliation with missing, rejected, invalid or deleted objects."""

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.names import CA_CONFIG_MAP, base_jobset, slice_jobset
from trainingjob_operator.core.report.rejections import explain_rejection
from trainingjob_operator.core.validation.validate import ValidationResult
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell import children
from trainingjob_operator.shell.check_pool import CheckCpuLimitError
from trainingjob_operator.shell.interfaces import (
    Caller,
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    Manifest,
)
from trainingjob_operator.shell.job_evaluation import FORMING_REQUEUE_SECONDS, IDLE_REQUEUE_SECONDS
from trainingjob_operator.shell.reconcile import MAX_CONFLICT_ATTEMPTS, Reconciler
from trainingjob_operator.shell.rejected_requests import RETRY_SECONDS


def events(sim: Simulation) -> list[tuple[bool, str]]:
    return [(warning, reason) for warning, reason, _ in sim.cluster.events]


async def look(sim: Simulation) -> float | None:
    return await sim.reconciler.reconcile(NAMESPACE, NAME)


def answer_creations(sim: Simulation, error: Exception) -> list[float]:
    """Answer each creation of a JobSet with an error; return the times of the requests."""
    requested: list[float] = []

    def answer(write: str) -> None:
        if write == "create JobSet":
            requested.append(sim.time.seconds)
            raise error

    sim.cluster.before = answer
    return requested


async def test_a_job_that_is_gone_needs_no_look() -> None:
    sim = Simulation()
    del sim.cluster.objects["TrainingJob", NAME]

    assert await look(sim) is None
    assert sim.cluster.writes == []


async def test_terminating_job_is_not_changed() -> None:
    sim = Simulation()
    sim.job["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"

    assert await look(sim) == IDLE_REQUEUE_SECONDS
    assert sim.cluster.writes == []


async def test_a_spec_that_cannot_be_planned_is_a_condition_and_makes_nothing() -> None:
    sim = Simulation(spec={"model": {}})

    assert await look(sim) == IDLE_REQUEUE_SECONDS
    await look(sim)

    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert any(problem.startswith("spec.model.vocabSize") for problem in sim.status.problems)
    assert sim.cluster.writes == ["status TrainingJob"]


SHAPES: dict[str, object] = {
    "no spec": None,
    "a list": [],
    "a string": "spec",
    "nothing in it": {},
    "lists for sections": {"model": [], "slices": [[]], "data": "x"},
    "numbers for sections": {"model": 1, "slices": float("nan"), "training": True},
}


@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES.keys())
async def test_no_shape_of_a_spec_breaks_it(spec: object) -> None:
    sim = Simulation()
    sim.job["spec"] = spec
    sim.job["status"] = {"world": [], "conditions": "x"}

    await look(sim)

    assert sim.condition("Valid")[0] == "False"


async def test_a_bad_edit_leaves_what_runs_alone_and_is_taken_back() -> None:
    sim = Simulation(total=40)
    await sim.run_until_step(5)
    good = sim.job["spec"]["elastic"]
    sim.edit(elastic={"maxRestarts": -1})
    await sim.run(5)
    sim.restart_operator()
    await sim.run(5)
    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert sim.newest_step > 10
    pods = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    assert pods == set(sim.agents)

    sim.edit(elastic=good)
    await sim.run(120, until="Succeeded")

    assert sim.condition("Valid") == ("True", "Valid")
    assert sim.status.problems == ()
    assert len(sim.status.attempts) == 1


async def test_a_job_that_is_suspended_and_has_no_pods_is_left_in_peace() -> None:
    sim = Simulation()
    await sim.run_until_step(5)
    sim.edit(suspend=True)
    await sim.run(30)
    assert sim.cluster.all("Pod") == []

    assert await look(sim) == IDLE_REQUEUE_SECONDS


async def test_a_new_operator_repeats_the_world_of_a_job_with_a_bad_spec() -> None:
    sim = Simulation()
    await sim.run_until_step(5)
    sim.edit(elastic={"maxRestarts": -1})
    sim.restart_operator()

    await sim.report()
    await look(sim)

    agent = next(iter(sim.agents.values()))
    answer = await sim.hub.answer(reconcile_caller(agent.pod_uid), "x", 0)
    assert answer
    assert answer.directive is Directive.TRAIN
    assert answer.world
    assert answer.world.generation == 1


def reconcile_caller(pod_uid: str) -> Caller:
    return Caller(pod_uid, NAMESPACE, NAME, UID)


async def test_missing_jobset_crd_is_reported_until_it_is_installed() -> None:
    sim = Simulation()
    sim.cluster.has_jobset = False

    again = await look(sim)
    assert sim.condition("Queued") == ("True", "JobSetMissing")
    assert again
    assert again < IDLE_REQUEUE_SECONDS
    sim.cluster.has_jobset = True
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"


async def test_rejection_is_reported_with_the_message_of_the_api_server() -> None:
    sim = Simulation()
    answer_creations(sim, ForbiddenError("exceeded quota: research"))
    assert await look(sim) == FORMING_REQUEUE_SECONDS
    assert events(sim) == [(True, "CreationRejected")]
    assert await look(sim) == RETRY_SECONDS
    queued = next(one for one in sim.status.conditions if one.type == "Queued")
    assert (queued.status, queued.reason, queued.message) == ("True", "CreationRejected", "exceeded quota: research")

    sim.cluster.before = lambda write: None
    await sim.run(120, until="Succeeded")
    assert sim.status.phase == "Succeeded"


async def test_rejected_request_is_retried_after_a_delay_despite_reconciliations() -> None:
    sim = Simulation()
    requested, begun = answer_creations(sim, ForbiddenError("no")), sim.time.seconds

    for seconds in (0.0, 1.0, RETRY_SECONDS - 1.5, 1.0, -3600.0):  # the last one: the clock is set back
        sim.time.seconds += seconds
        await look(sim)
        await look(sim)

    assert [at - begun for at in requested] == [
        0.0,
        RETRY_SECONDS + 0.5,
        RETRY_SECONDS + 0.5 - 3600.0,
    ]
    assert events(sim) == [(True, "CreationRejected")] * 3


DOWN = 'Internal error occurred: failed calling webhook "mjobset.kb.io": connection refused'
ERRORS = {"a webhook that is down": ForbiddenError(DOWN), "an API server that is busy": ClusterUnavailableError("busy")}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
async def test_slice_that_cannot_be_recreated_stops_no_other_slice(error: Exception) -> None:
    sim = Simulation(total=400)
    await sim.run_until_step(10)
    elastic = sim.cluster.objects["JobSet", slice_jobset(NAME, UID, 1)]

    answer_creations(sim, error)
    await sim.cluster.delete(elastic)
    await sim.run(30)

    shrunk = sim.status
    assert shrunk.world
    assert shrunk.world.slices == (0,)
    assert sim.steps[shrunk.world.generation] > 1, "it trains"
    if isinstance(error, ForbiddenError):
        messages = {one.type: one.message for one in shrunk.conditions}
        assert messages["Degraded"].endswith(f"host 0 has no pod yet; {explain_rejection(DOWN)}")
        assert messages["Running"].endswith(explain_rejection(DOWN))
    sim.cluster.before = lambda write: None
    await sim.run(60)

    assert sim.status.world
    assert sim.status.world.slices == (0, 1)
    assert sim.condition("Degraded")[0] == "False"


async def test_a_pod_that_must_not_be_is_never_created(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Simulation()
    monkeypatch.setattr(children, "check_jobset", lambda jobset, profile: ["spec.hostNetwork: must not be there"])

    await look(sim)
    await look(sim)

    assert not sim.cluster.all("JobSet")
    assert sim.condition("Queued") == ("True", "CreationRejected")


async def test_jobset_that_appeared_meanwhile_is_adopted_unchanged() -> None:
    sim = Simulation()
    await look(sim)
    stored = sim.cluster.objects["JobSet", base_jobset(NAME, UID)]["metadata"]["uid"]
    sim.cluster.stale_reads = 1
    sim.cluster._last_children = type(await sim.cluster.read_children(NAMESPACE, "nobody"))()

    await look(sim)

    assert sim.cluster.objects["JobSet", base_jobset(NAME, UID)]["metadata"]["uid"] == stored


async def test_foreign_jobset_is_never_changed() -> None:
    sim = Simulation()
    await look(sim)
    jobset = sim.cluster.objects["JobSet", base_jobset(NAME, UID)]
    jobset["metadata"]["ownerReferences"][0]["uid"] = "another"
    sim.cluster.objects["Someone", "another"] = {"kind": "Someone", "metadata": {"uid": "another"}}
    jobset["spec"]["suspend"] = True

    sim.edit(suspend=True)
    await sim.run(30)

    assert ("JobSet", base_jobset(NAME, UID)) in sim.cluster.objects


async def test_conflict_is_retried_a_few_times() -> None:
    sim = Simulation()
    tries = 0

    def change(write: str) -> None:
        nonlocal tries
        if write == "status TrainingJob":
            tries += 1
            raise ConflictError("changed")

    sim.cluster.before = change

    assert await look(sim) == FORMING_REQUEUE_SECONDS
    assert tries == MAX_CONFLICT_ATTEMPTS


async def test_job_whose_child_existed_already_is_looked_at_soon() -> None:
    sim = Simulation(total=60)

    def conflict(write: str) -> None:
        if write == "create JobSet":
            raise ConflictError("it exists")

    sim.cluster.before = conflict
    assert await look(sim) == FORMING_REQUEUE_SECONDS
    sim.cluster.before = lambda _: None
    assert await look(sim) > FORMING_REQUEUE_SECONDS


async def test_a_new_certificate_authority_reaches_the_pods() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(5)
    renewed = RenderSettings("image", "https://here", "pem and a new one")
    sim.reconciler = Reconciler(sim.cluster, sim.hub, lambda: renewed, sim.time.now)

    sim.cluster.writes.clear()
    await look(sim)
    await look(sim)

    assert sim.cluster.objects["ConfigMap", CA_CONFIG_MAP]["data"] == {"ca.crt": "pem and a new one"}
    assert sim.cluster.writes.count("apply ConfigMap") == 1
    assert "create ConfigMap" not in sim.cluster.writes


async def test_certificates_that_a_user_deletes_return() -> None:
    sim = Simulation(total=600)
    await sim.run_until_step(5)
    before = sim.cluster.objects.pop(("ConfigMap", CA_CONFIG_MAP))

    await sim.run(10)

    assert sim.cluster.objects["ConfigMap", CA_CONFIG_MAP]["data"] == before["data"]


async def test_an_ended_job_is_deleted_in_time() -> None:
    sim = Simulation(spec={"ttlSecondsAfterFinished": 30})
    await sim.run(120, until="Succeeded")
    again = await look(sim)
    assert again
    assert 0 < again <= 31
    children = [item for item in sim.cluster.objects.values() if item["kind"] != "TrainingJob"]
    assert children

    sim.time.seconds += 40
    assert await look(sim) is None

    assert ("TrainingJob", NAME) not in sim.cluster.objects


async def test_a_namesake_starts_afresh() -> None:
    sim = Simulation()
    await sim.run_until_step(5)
    former: Manifest = sim.cluster.objects.pop(("TrainingJob", NAME))
    fresh = {
        "kind": "TrainingJob",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "second", "generation": 1},
    }
    sim.cluster.put(fresh | {"spec": former["spec"]})

    await look(sim)

    assert not sim.hub.has_published(KEY)
    assert sim.status.world is None
    assert ("JobSet", base_jobset(NAME, "second")) in sim.cluster.objects


async def test_each_event_is_reported_once() -> None:
    sim = Simulation()
    await sim.run_until_step(10)
    sim.crash_child("node-1-0", "ValueError: bad")
    await sim.run(120, until="Succeeded")

    assert events(sim) == [(False, "Formed"), (True, "Crash"), (False, "Formed"), (False, "Completed")]


async def test_a_bad_spec_and_no_jobset_at_once() -> None:
    sim = Simulation()
    await sim.run_until_step(5)
    sim.edit(elastic={"maxRestarts": -1})
    sim.restart_operator()
    sim.cluster.has_jobset = False

    assert await look(sim) == IDLE_REQUEUE_SECONDS / 10

    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert not sim.hub.has_published(KEY)


async def test_a_spec_that_costs_too_much_to_check_is_invalid_and_ends_nothing() -> None:
    checks = []

    async def refuse(namespace: str, name: str, spec: object) -> ValidationResult:
        del spec
        checks.append((namespace, name))
        raise CheckCpuLimitError("its check needs more than 10 s of CPU time")

    sim = Simulation(total=60)
    await sim.run_until_step(5)
    sim.reconciler = Reconciler(
        sim.cluster, sim.hub, lambda: RenderSettings("image", "https://here", "pem"), sim.time.now, check=refuse
    )
    await sim.run(10)

    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert checks == [(NAMESPACE, NAME)], "the verdict is remembered: it would be the same"
    assert sim.newest_step > 10, "what runs goes on"
