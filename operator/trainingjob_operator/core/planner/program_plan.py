"""The plan of a job whose hosts run their own program: slices, hosts and devices. All else only the program knows."""

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.plan import SizePlan, SliceShape


def plan_program_sizes(spec: TrainingJobSpec, shape: SliceShape) -> dict[int, SizePlan]:
    """Return the plan of each number of slices of the spec. Every size is possible, and no memory is estimated."""
    return {
        num_slices: SizePlan(num_slices, _describe_devices(num_slices, shape), None)
        for num_slices in spec.slices.slice_counts
    }


def _describe_devices(num_slices: int, shape: SliceShape) -> Layout:
    """Return a layout that counts devices. Its mesh has one axis inside a slice and one across slices."""
    return Layout(
        num_slices=num_slices,
        hosts_per_slice=shape.num_hosts,
        devices_per_host=shape.devices_per_host,
        ici=AxisDegrees(data=shape.num_devices, fsdp=1),
        dcn=AxisDegrees(data=num_slices),
        rows_per_shard=0,
        accumulation=0,
        padding_rows=0,
    )
