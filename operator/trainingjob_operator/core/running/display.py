"""The plan and the state of a job as people read them: its sizes, and the strings in the columns of `kubectl get`."""

from trainingjob_api.status import Display, PlanStatus, SizeStatus, TrainingJobStatus
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan, SizePlan
from trainingjob_operator.core.running.situation import Situation
from trainingjob_operator.core.units import plural, runs, short, span


def display(plan: Plan, status: TrainingJobStatus, situation: Situation) -> Display:
    """Return the columns of a status that is otherwise complete."""
    progress, world = status.progress, situation.world
    num_slices = len(world.slices) if world else 0
    layout = plan.find_layout(num_slices)
    return Display(
        slices=f"{num_slices}/{plan.allowed[-1]}",
        step=f"{progress.step if progress else 0}/{plan.spec.training.steps}",
        loss=f"{progress.loss:.4g}" if progress and progress.loss is not None else "",
        goodput=f"{status.goodput.ratio * 100:.1f}%" if status.goodput.seconds else "",
        mesh=describe_mesh(layout) if layout else "",
        tokens_per_second=short(progress.tokens_per_second) if progress and progress.tokens_per_second else "",
        eta=span(progress.eta_seconds) if progress and progress.eta_seconds is not None else "",
        checkpoint=str(status.checkpoint.step) if status.checkpoint else "",
        reason=situation.reason,
    )


def describe_plan(plan: Plan) -> PlanStatus:
    """Return the plan as the status shows it."""
    return PlanStatus(
        parameters=plan.num_parameters,
        active_parameters=plan.num_active_parameters,
        tokens_per_step=plan.tokens_per_step,
        sizes=tuple(_size_status(plan, size) for size in plan.sizes),
    )


def describe_sizes(plan: Plan) -> str:
    """Return on how many slices the job may train: `1 slice`, `2 to 4 slices`, `1, 2 and 4 slices`."""
    return f"{runs(plan.allowed)} {'slice' if plan.allowed == (1,) else 'slices'}"


def describe_parameters(plan: Plan) -> str:
    """Return how large the model is: `8.03 B parameters`, `46.7 B parameters · 8 experts, 12.9 B active`."""
    parameters, experts = f"{short(plan.num_parameters)} parameters", plan.spec.model.experts
    return (
        f"{parameters} · {plural(experts.count, 'expert')}, {short(plan.num_active_parameters)} active"
        if experts
        else parameters
    )


def _size_status(plan: Plan, size: SizePlan) -> SizeStatus:
    devices = size.num_slices * plan.shape.num_devices
    if size.layout is None:
        return SizeStatus(slices=size.num_slices, devices=devices, valid=False, why=size.why[:1024])
    return SizeStatus(
        slices=size.num_slices,
        devices=devices,
        valid=True,
        mesh=describe_mesh(size.layout),
        rows_per_shard=size.layout.rows_per_shard,
        microbatches=size.layout.microbatches,
        accumulation=size.layout.accumulation,
        padding_rows=size.layout.padding_rows,
        memory_bytes=size.memory.total if size.memory else 0,
    )
