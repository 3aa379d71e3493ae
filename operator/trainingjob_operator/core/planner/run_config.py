"""Parts of the plan that pods receive: the RunConfig, each world's program config, and the expected hardware rates."""

from typing import Any

from trainingjob_api.world import Expected, JobIdentity, Layout, RunConfig, World
from trainingjob_operator.core.planner.plan import Plan


def run_config(identity: JobIdentity, plan: Plan) -> RunConfig:
    """Return the RunConfig of a job: its spec and the layout of every valid size."""
    return RunConfig(
        job=identity,
        spec=plan.spec,
        accelerator_platform=plan.shape.platform,
        layouts=tuple(size.layout for size in plan.sizes if size.layout is not None),
    )


def tell_program(world: World, plan: Plan, layout: Layout | None) -> World:
    """Return a world with the program config of its hosts: layout, remat policy and snapshot interval."""
    told: dict[str, Any] = {"layout": layout, "remat": plan.spec.memory.remat}
    if plan.snapshots:
        told |= {"snapshots": plan.snapshots.every_steps, "snapshots_may_stretch": plan.snapshots.is_chosen}
    return world.model_copy(update=told)


def expect(plan: Plan) -> Expected:
    """Return the rates and memory that the devices of a job must have."""
    rates = plan.shape.rates
    return Expected(
        flops=rates.bfloat16,
        link=rates.link * rates.num_links,
        network=plan.shape.network_per_host,
        memory=max((size.memory.total for size in plan.sizes if size.memory), default=0),
    )
