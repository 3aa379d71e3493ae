"""Simulated jobs for tests: small, endless, and quick to form."""

from dataclasses import replace
from typing import Any

from tests.support.builders import make_plan
from trainingjob_api.spec.checkpoint import Snapshots
from trainingjob_operator.core.planner.plan import Plan, SnapshotPlan
from trainingjob_operator.core.simulate.durations import Durations

PACE = Durations({1: 8.0, 2: 4.0, 3: 3.0, 4: 2.0}, pod_start=60.0, world_join=5.0, save=10.0)
HOUR = 3600.0
EVERY = 20
"""Steps between two checkpoints."""


def endless(fewest: int = 1, most: int = 4, allowed: tuple[int, ...] = (), **elastic: Any) -> Plan:
    """Return a plan of a job that is never done, with slices of one host."""
    training = {"steps": 100_000_000, "globalBatchSize": 16, "sequenceLength": 32}
    checkpoint = {"uri": "/shared/runs/demo", "save": {"everySteps": EVERY}}
    return make_plan(fewest, most, 1, allowed, training=training, checkpoint=checkpoint, elastic=elastic)


def remembering(plan: Plan, every: int = 4) -> Plan:
    """Return the plan with snapshots in the hosts' memory."""
    checkpoint = plan.spec.checkpoint.model_copy(update={"snapshots": Snapshots(every_steps=every)})
    spec = plan.spec.model_copy(update={"checkpoint": checkpoint})
    return replace(plan, spec=spec, snapshots=SnapshotPlan(every, 1))
