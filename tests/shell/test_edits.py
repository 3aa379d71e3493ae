"""Edits of a job while it trains: whatever was edited in between, a job ends as one that was made like its last edit.

The oracle is a fresh job of the last spec (Acto's differential oracle; Gu et al., 2023).
"""

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import NAME, UID
from tests.simulation import Simulation
from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.core.names import config_map

type Sections = dict[str, Any]


def held_out(every: int) -> list[Sections]:
    return [{"name": "held-out", "path": "python:json", "everySteps": every}]


STEPS = 24
counts = st.sampled_from(({"min": 1, "max": 2}, {"min": 2, "max": 2}, {"min": 1, "max": 1}, {"min": 1, "max": 4}))
steps = st.integers(2, 20)
edits = st.one_of(
    st.builds(lambda more: {"training": {"steps": more}}, st.integers(STEPS, STEPS + 8)),
    st.builds(lambda some: {"slices": some}, counts),
    st.builds(
        lambda every, last: {"checkpoint": {"save": {"everySteps": every}, "keep": {"last": last}}}, steps, steps
    ),
    st.builds(lambda every: {"checkpoint": {"keep": {"last": 3, "everySteps": every}}}, steps),
    st.builds(lambda every: {"evaluation": held_out(every)}, steps),
    st.builds(lambda every: {"metrics": {"everySteps": every}}, steps),
    st.builds(lambda seconds: {"elastic": {"growCooldown": f"{seconds}s"}}, steps),
    st.builds(lambda seconds: {"activeDeadlineSeconds": 10_000 + seconds}, steps),
    st.builds(lambda: {"activeDeadlineSeconds": None, "metrics": None}),
    st.builds(lambda: {"suspend": True}),
    st.builds(lambda: {"suspend": False}),
    st.builds(lambda: {"elastic": {"maxRestarts": -1}}),  # refused, until a later edit takes it back
)
schedules = st.lists(st.tuples(st.integers(0, 12), edits), max_size=6)
LAST: Sections = {"suspend": False, "elastic": {"maxRestarts": 50}}
"""What every schedule ends with: a job that may run."""


def merge(spec: Sections, edit: Sections) -> Sections:
    """Return a spec with an edit's fields in the place of its own, as `kubectl patch --type merge` does.

    It goes one section deep, so `save` and `keep` lose the fields that an edit leaves out.
    """
    both = {name: value for name, value in edit.items() if isinstance(value, dict)}
    return {**spec, **edit, **{name: {**spec.get(name, {}), **value} for name, value in both.items()}}


async def live(schedule: list[tuple[int, Sections]]) -> Simulation:
    sim = Simulation(total=STEPS, spec={"evaluation": held_out(10)})
    for pause, edit in (*schedule, (0, LAST)):
        await sim.run(pause)
        if sim.status.completion_time is None:  # after that the webhook lets nothing be changed that had an effect
            sim.edit(**merge(sim.job["spec"], edit))
    await sim.run(600, until="Succeeded")
    await sim.run(5)
    return sim


async def live_afresh(spec: Sections) -> Simulation:
    sim = Simulation()
    sim.edit(**spec)
    await sim.run(600, until="Succeeded")
    await sim.run(5)
    return sim


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
        "config": sim.cluster.objects["ConfigMap", config_map(NAME, UID)]["data"],
    }


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(schedules)
def test_a_job_ends_as_one_that_was_made_like_its_last_edit(schedule: list[tuple[int, Sections]]) -> None:
    edited = asyncio.run(live(schedule))
    fresh = asyncio.run(live_afresh(edited.job["spec"]))

    assert describe_end(edited) == describe_end(fresh)
    assert all(attempt.lost_steps in (None, 0) for attempt in edited.status.attempts), "edits cost no step"
