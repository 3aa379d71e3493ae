"""The plan of a job with `program`: what the operator knows about it, and what only the program knows."""

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli.printing import align
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.summary import describe_parameters, describe_sizes
from trainingjob_operator.core.units import format_duration, format_size

NOTES = (
    "not known: memory, FLOPs, mesh, batch and step time. Only the program knows its model",
    "restarts: each world restarts the program; there is no hot standby and no snapshot in host memory",
    "checkpoints: the program saves, resumes from and deletes its own below the run folder",
)


def program_headline(name: str, plan: Plan) -> str:
    """Return the program and the hardware on one line."""
    shape = plan.shape
    return " · ".join((name, describe_parameters(plan), f"{shape.accelerator} {shape.topology}", describe_sizes(plan)))


def program_table(plan: Plan) -> list[str]:
    """Return a table with one row per number of slices, then the notes."""
    shape, spec = plan.shape, plan.spec
    rows = [
        (str(size), str(size * shape.num_hosts), str(size * shape.num_devices), *_network(plan))
        for size in plan.allowed_sizes
    ]
    headings = ("slices", "processes", f"{shape.device_noun}s", *(["network/host"] if _network(plan) else []))
    return [
        *align([headings, *rows], right=range(len(headings))),
        f"run folder: {spec.checkpoint.uri}",
        f"save and leave: SIGTERM; the program is killed after {format_duration(spec.runtime.trainer_grace_seconds)}",
        *NOTES,
        _describe_steps(spec),
        *([f"pod profile: {shape.profile.name}"] if shape.profile else []),
    ]


def describe_entrypoint(spec: TrainingJobSpec) -> list[str]:
    """Return what a plan leaves out of a step that a function of the user changes; empty without one."""
    if spec.program is None or spec.program.entrypoint is None:
        return []
    counted = "memory, FLOPs and traffic are those of the built-in step"
    return [f"entrypoint: {spec.program.entrypoint} may change the loss and the step; {counted}"]


def _describe_steps(spec: TrainingJobSpec) -> str:
    """Return where the steps of the program come from, and what depends on them."""
    depends = "progress, hang detection and growth between restarts"
    if spec.command_program and spec.command_program.progress:
        return f"steps: read in the log with `program.progress.pattern`, for {depends}"
    return f"steps: as the program reports them with `trainingjob_program`; without reports there is no {depends}"


def _network(plan: Plan) -> tuple[str, ...]:
    """Return the rate of a host's network; empty if it is unknown."""
    rate = plan.shape.network_per_host
    return (f"{format_size(rate)}/s",) if rate else ()
