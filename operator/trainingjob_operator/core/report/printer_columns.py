"""Printer columns of `kubectl get`."""

from trainingjob_api.status import Display, TrainingJobStatus
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.report.situation import Situation
from trainingjob_operator.core.units import format_count, format_duration


def make_printer_columns(plan: Plan, status: TrainingJobStatus, situation: Situation) -> Display:
    """Return the printer columns of a status that is otherwise complete."""
    progress, world = status.progress, situation.world
    num_slices = len(world.slices) if world else 0
    layout = plan.find_layout(num_slices)
    step = progress.step if progress else 0
    return Display(
        slices=f"{num_slices}/{plan.allowed_sizes[-1]}",
        step=f"{step}/{max(plan.spec.training.steps, step)}",
        loss=f"{progress.loss:.4g}" if progress and progress.loss is not None else "",
        goodput=f"{status.goodput.ratio * 100:.1f}%" if status.goodput.seconds else "",
        mesh=describe_mesh(layout) if layout else "",
        tokens_per_second=format_count(progress.tokens_per_second) if progress and progress.tokens_per_second else "",
        eta=format_duration(progress.eta_seconds) if progress and progress.eta_seconds is not None else "",
        checkpoint=str(status.checkpoint.step) if status.checkpoint else "",
        reason=situation.reason,
    )
