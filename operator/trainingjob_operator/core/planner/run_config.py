"""What the agents and the trainer are told of a plan: the RunConfig of a job."""

from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.planner.plan import Plan


def run_config(identity: JobIdentity, plan: Plan) -> RunConfig:
    """Return the RunConfig of a job: its spec and the layout of every size that it may train at."""
    return RunConfig(
        job=identity,
        spec=plan.spec,
        accelerator_platform=plan.shape.platform,
        layouts=tuple(size.layout for size in plan.sizes if size.layout is not None),
    )
