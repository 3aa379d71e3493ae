"""Parts of the plan that pods receive: the RunConfig, each world's program config, and the expected hardware rates."""

from typing import Any

from trainingjob_api.base import seconds
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import ExpectedHardware, JobIdentity, Layout, Replication, RunConfig, World
from trainingjob_operator.core.planner.interconnect import axis_bandwidths
from trainingjob_operator.core.planner.plan import Plan, SliceShape


def build_run_config(identity: JobIdentity, plan: Plan) -> RunConfig:
    """Return the RunConfig of a job: its spec and the layout of every valid size. All replicas have the same."""
    return RunConfig(
        job=identity,
        spec=plan.spec,
        accelerator_platform=plan.shape.platform,
        layouts=tuple(dict.fromkeys(size.layout for size in plan.sizes if size.layout is not None)),
    )


def attach_program_config(world: World, plan: Plan, layout: Layout | None) -> World:
    """Return a world with the program config of its hosts: layout, memory, snapshots and replication."""
    memory = plan.spec.memory
    program_config: dict[str, Any] = {"layout": layout, "remat": memory.remat, "offload": memory.offload or ()}
    if plan.snapshots:
        program_config |= {
            "snapshots": plan.snapshots.every_steps,
            "snapshots_may_stretch": plan.snapshots.is_interval_chosen,
        }
    if replicas := plan.spec.parallelism.replicas:
        program_config["replication"] = Replication(
            slices_max=plan.spec.slices.max_slices,
            sync_every=replicas.sync_every,
            learning_rate=replicas.learning_rate,
            momentum=replicas.momentum,
            wait_seconds=seconds(replicas.wait_for),
        )
    return world.model_copy(update=program_config)


def expected_hardware(plan: Plan) -> ExpectedHardware:
    """Return the rates and memory that the devices of a job must have."""
    rates = plan.shape.rates
    return ExpectedHardware(
        flops=rates.bfloat16,
        link=_sum_rate(plan.shape),
        network=plan.shape.network_per_host,
        memory=max((size.memory.total for size in plan.sizes if size.memory), default=0),
    )


def _sum_rate(shape: SliceShape) -> float:
    """Return the bytes/s that a device can send in a sum over all devices of its slice. 0: unknown.

    A chip of a small slice has links that lead nowhere: in a slice of 2x2x1 it uses two of six.
    """
    peak = shape.rates.link * shape.rates.num_links
    if not shape.torus or shape.num_devices == 1:
        return peak
    planned = sum(axis_bandwidths(shape, AxisDegrees(fsdp=shape.num_devices)).values())
    return min(planned, peak or planned)
