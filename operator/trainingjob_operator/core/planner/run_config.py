"""What the agents and the trainer are told of a plan: the RunConfig of a job, and what its devices should do."""

from trainingjob_api.world import Expected, JobIdentity, RunConfig
from trainingjob_operator.core.planner.plan import Plan


def run_config(identity: JobIdentity, plan: Plan) -> RunConfig:
    """Return the RunConfig of a job: its spec and the layout of every size that it may train at."""
    return RunConfig(
        job=identity,
        spec=plan.spec,
        accelerator_platform=plan.shape.platform,
        layouts=tuple(size.layout for size in plan.sizes if size.layout is not None),
    )


def expect(plan: Plan) -> Expected:
    """Return what the devices of a job are to be capable of."""
    rates = plan.shape.rates
    return Expected(
        flops=rates.bfloat16,
        link=rates.link * rates.num_links,
        network=plan.shape.network_per_host,
        memory=max((size.memory.total for size in plan.sizes if size.memory), default=0),
    )
