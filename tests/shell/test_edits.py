"""Edits of a job while it trains: after any edits, a job ends like a job that was created with its last spec.

The oracle is a fresh job of the last spec (Acto's differential oracle; Gu et al., 2023). The edits are those that the
API's own schema allows. A permanently rejected edit changes nothing; an edit that violates a rule is stored all the
same, as without the webhook, and the next edit reverts it.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.builders import NAME, UID, spec_manifest
from tests.support.cases import sample
from tests.support.schema_edits import SCHEMA, Edit, Node, change, is_live, list_edits, refuse, with_defaults
from tests.support.simulation import Simulation
from trainingjob_api.live import live_fields
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.training import MAX_STEP
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import World
from trainingjob_operator.core.config_maps import select_config_maps
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.core.validation.validate_update import check_update

LIVE = [edit for edit in list_edits() if is_live(edit)]
FIXED = [edit for edit in list_edits() if not is_live(edit)]
NUM_LIVES = 14
"""In so many lives each edit is made once that may be made."""
STEPS = 160
SETTLING_SECONDS = 25
"""As long as the last world takes to form, and the JobSets to be those that it needs."""
EDIT_SECONDS = 12
"""As long as an edit takes until all hosts train by it."""
LAG = 6
"""Steps that a job makes until an edit has come to its hosts. It cannot end before."""
NUM_SLICES = 2
"""For so many there is room."""
COOLDOWN = "5s"


def start(**slices: Any) -> Node:
    """Return a valid spec that changes nearly all mutable fields from their defaults."""
    given: Node = spec_manifest(
        slices={"accelerator": "cpu", "topology": "2x2", **slices},
        training={"steps": STEPS, "globalBatchSize": 16, "sequenceLength": 32},
        checkpoint={
            "uri": "/shared/runs/demo",
            "failAfter": "2h",
            "save": {"everySteps": 8, "every": "10m"},
            "keep": {"last": 4, "stages": [{"every": 20}], "best": {"evaluation": "held-out", "count": 2}},
        },
        evaluation=[{"name": "held-out", "path": "python:json", "everySteps": 10}],
        elastic={
            "policy": "wait",
            "shrinkAfter": "5m",
            "maxRestarts": 20,
            "maxRestartsWithoutCommit": 7,
            "nodeExclusion": "report",
            "growCooldown": COOLDOWN,
            "progressTimeout": "5m",
        },
        protection={"maxRollbacks": 5},
        ttlSecondsAfterFinished=10_000,
        activeDeadlineSeconds=10_000,
    )
    return with_defaults(SCHEMA, given)


STARTS = (start(min=1, max=2), start(min=1, max=2, allowed=[1, 2]), start(count=1), start(count=2))
edits = st.sampled_from(LIVE) | st.sampled_from(LIVE) | st.sampled_from(FIXED)
schedules = st.lists(st.tuples(st.sampled_from((1, 4, EDIT_SECONDS)), edits), min_size=3, max_size=8)


@pytest.mark.parametrize("spec", STARTS)
def test_no_operation_changes_an_immutable_field(spec: Node) -> None:
    changed = {edit: change(spec, edit) for edit in FIXED}

    assert [edit for edit, after in changed.items() if after != spec and not refuse(spec, after)] == []


def close(spec: Node, step: int) -> Node:
    """Return a spec after what every schedule ends with: a job that may run, and still has some steps to go."""
    slices = spec["slices"]
    fewest = slices.get("count") or slices["min"]
    return {
        **spec,
        "slices": slices if fewest <= NUM_SLICES else start(min=1, max=2)["slices"],
        "training": {**spec["training"], "steps": max(spec["training"]["steps"], step + 2 * SETTLING_SECONDS)},
        "elastic": {**spec["elastic"], "growCooldown": COOLDOWN},
        "suspend": False,
    }


def is_refused(sim: Simulation, after: Node) -> bool:
    """Return whether an edit never reaches the operator: the API server or the webhook rejects it."""
    before = sim.job["spec"]
    if refuse(before, after):
        return True
    steps = after["training"].get("steps", MAX_STEP)  # without them the spec is invalid, because it has no epochs
    ends_early = after["training"] != before["training"] and steps <= sim.newest_step + LAG
    problems = list(check_update(sim.job, {**sim.job, "spec": after}))
    return bool(problems) or ends_early


async def live(spec: Node, schedule: list[tuple[int, Edit]], head_start: int) -> Simulation:
    sim, good = Simulation(spec=spec), spec
    await sim.run(head_start)
    for pause, edit in schedule:
        after = change(good, edit)
        if is_refused(sim, after):
            await sim.run(pause)
        elif validate_job(NAME, after).plan is None:
            await run_with_a_bad_spec(sim, after, pause)
            store(sim, good)
        else:
            good = after
            store(sim, good)
            await sim.run(pause)
            if pause == EDIT_SECONDS:
                assert all(
                    world.live == live_fields(TrainingJobSpec.model_validate(good)) for world in list_worlds(sim)
                )
    after = close(good, sim.newest_step)
    if not is_refused(sim, after):
        store(sim, after)
    return sim


def store(sim: Simulation, spec: Node) -> None:
    before = sim.job["spec"]
    sim.edit(**{name: spec.get(name) for name in {*before, *spec}})


async def run_with_a_bad_spec(sim: Simulation, spec: Node, seconds: int) -> None:
    before, status = list_objects(sim), sim.status
    store(sim, spec)
    await sim.run(seconds)
    assert sim.condition("Valid") == ("False", Reason.INVALID_SPEC)
    assert sim.status.problems
    assert sim.status.world == status.world, "what runs is left alone"
    assert len(sim.status.attempts) == len(status.attempts)
    assert list_objects(sim) == before


def list_objects(sim: Simulation) -> dict[tuple[str, str], str]:
    """Return the versions of the operator's objects."""
    made = (*sim.cluster.all("JobSet"), *sim.cluster.all("ConfigMap"))
    return {(one["kind"], one["metadata"]["name"]): one["metadata"]["resourceVersion"] for one in made}


def newest_config(sim: Simulation) -> dict[str, str]:
    """Return the data of the newest revision of the job's ConfigMap."""
    newest = select_config_maps(sim.cluster.all("ConfigMap"), NAME, UID)[-1]
    return dict(newest["data"])


def describe_children(sim: Simulation) -> dict[str, Any]:
    """Return the objects of a job and its members: slice by slice, because the minimum may have been another before.

    The base JobSet keeps its original slices. Slices outside the current spec are omitted.
    """
    wanted = sim.job["spec"]["slices"]
    most = wanted.get("count") or wanted["max"]
    jobsets = [(int(one["metadata"]["labels"][SLICE_OFFSET_LABEL]), one) for one in sim.cluster.all("JobSet")]
    pods = [pod for pod in sim.cluster.all("Pod") if not pod["metadata"].get("deletionTimestamp")]
    return {
        "slices": {
            offset + index: describe_slice(jobset)
            for offset, jobset in jobsets
            for index in range(jobset["spec"]["replicatedJobs"][0]["replicas"])
            if index < most or offset
        },
        "pods": sorted((*seat(pod), pod["status"]["phase"]) for pod in pods if seat(pod)[0] < most),
        "config": newest_config(sim),
        "worlds": [(world.live, world.layout, len(world.members)) for world in list_worlds(sim)],
    }


def list_worlds(sim: Simulation) -> list[World]:
    """Return the worlds that hosts train in, by their directives."""
    return [child.world for agent in sim.agents.values() if (child := agent.active()) and child.world]


def describe_slice(jobset: Node) -> Node:
    """Return the rendered form of one slice of a JobSet, without its index and the time of the plan."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    metadata = {key: jobset["metadata"].get(key) for key in ("labels", "ownerReferences")}
    spec = {**jobset["spec"], "replicatedJobs": [{**replicated, "replicas": 1}]}
    return without_place({"metadata": metadata, "spec": spec})


def without_place(value: Any) -> Any:
    """Return a part of a JobSet without its place, and without what depends on the time of its creation.

    That is the revision of its RunConfig, and the memory that the sizes of that time need.
    """
    if isinstance(value, list):
        return [without_place(item) for item in value]
    if not isinstance(value, dict):
        return value
    left_out = ("value",) if value.get("name") == "TRAININGJOB_EXPECTED" else (SLICE_OFFSET_LABEL, "configMap")
    return {name: without_place(item) for name, item in value.items() if name not in left_out}


def seat(pod: Node) -> tuple[int, int]:
    labels = pod["metadata"]["labels"]
    return int(labels[SLICE_OFFSET_LABEL]) + int(labels[JOB_INDEX_LABEL]), int(labels[HOST_LABEL])


def describe_end(sim: Simulation) -> dict[str, Any]:
    """Return what a job comes to, without the way that it took there."""
    status: TrainingJobStatus = sim.status
    assert status.progress
    assert status.checkpoint
    return {
        "phase": status.phase,
        "conditions": {one.type: (one.status, one.reason) for one in status.conditions},
        "problems": status.problems,
        "plan": status.plan,
        "progress": (status.progress.step, status.progress.of),
        "checkpoint": status.checkpoint.step,
        "restarts": status.restarts,
        "config": newest_config(sim),
    }


async def compare(spec: Node, schedule: list[tuple[int, Edit]], head_start: int) -> None:
    edited = await live(spec, schedule, head_start)
    fresh = Simulation(spec=edited.job["spec"])
    for sim in (edited, fresh):
        await sim.run(SETTLING_SECONDS)
    if edited.status.completion_time is None:  # what a job that is over leaves there is that of its last moment
        assert describe_children(edited) == describe_children(fresh)
    for sim in (edited, fresh):
        sim.step_seconds = 0.1
        await sim.run(600, until="Succeeded")
        await sim.run(5)
    assert describe_end(edited) == describe_end(fresh)
    assert all(attempt.lost_steps in (None, 0) for attempt in edited.status.attempts), "edits cost no step"


@pytest.mark.parametrize("first", sample([(first,) for first in range(NUM_LIVES)], every=5))
async def test_each_edit_comes_to_all_hosts(first: int) -> None:
    await compare(STARTS[0], [(EDIT_SECONDS, edit) for edit in LIVE[first::NUM_LIVES]], EDIT_SECONDS)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STARTS), schedules, st.sampled_from((0, EDIT_SECONDS)))
def test_job_ends_like_one_created_with_its_last_spec(
    spec: Node, schedule: list[tuple[int, Edit]], head_start: int
) -> None:
    asyncio.run(compare(spec, schedule, head_start))
