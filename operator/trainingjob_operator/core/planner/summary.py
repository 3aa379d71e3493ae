"""The plan for users: its sizes, its parameters, and its form in the status."""

import shlex

from trainingjob_api.network.fingerprint import fingerprint
from trainingjob_api.network.resolve import resolve
from trainingjob_api.status.plan_status import KernelStatus, OptimizerMemoryStatus, PlanStatus, SizeStatus
from trainingjob_api.teacher import count_stored_bytes
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan, SizePlan
from trainingjob_operator.core.units import format_count, format_ranges, format_size, pluralize


def describe_plan(plan: Plan) -> PlanStatus:
    """Return the plan in the form of the status."""
    sizes = tuple(_size_status(plan, size) for size in plan.sizes)
    if plan.spec.command_program:
        return PlanStatus(parameters=0, tokens_per_step=0, sizes=sizes)
    memory = plan.optimizer_memory
    return PlanStatus(
        parameters=plan.num_parameters,
        preset=plan.spec.model.preset or "",
        network=fingerprint(resolve(plan.spec.model)),
        active_parameters=plan.num_active_parameters,
        trainable_parameters=plan.num_trainable_parameters,
        tokens_per_step=plan.tokens_per_step,
        sizes=sizes,
        kernels=tuple(
            KernelStatus(part=kernel.part, name=kernel.name, reason=kernel.reason) for kernel in plan.kernels
        ),
        optimizer_memory=OptimizerMemoryStatus(name=memory.name, reason=memory.reason) if memory else None,
    )


def describe_sizes(plan: Plan) -> str:
    """Return the allowed numbers of slices as text: `1 slice`, `2 to 4 slices`, `1, 2 and 4 slices`."""
    return f"{format_ranges(plan.allowed_sizes)} {'slice' if plan.allowed_sizes == (1,) else 'slices'}"


def describe_parameters(plan: Plan) -> str:
    """Return the model size as text: `8.03 B parameters`, `46.7 B parameters · 8 experts, 12.9 B active`.

    With frozen tensors also the number of trained parameters: `8.03 B parameters, 13.6 M trained`. A distillation adds
    `teacher of 70.6 B`, or `stored probabilities: 76 B a token, 10 MB a step`. A program is described by its command.
    """
    if plan.spec.command_program:
        return f"program {shlex.join(plan.spec.command_program.command or ())}"
    parameters, experts = f"{format_count(plan.num_parameters)} parameters", plan.spec.model.experts
    if plan.num_trainable_parameters < plan.num_parameters:
        parameters += f", {format_count(plan.num_trainable_parameters)} trained"
    if experts:
        parameters += f" · {pluralize(experts.count, 'expert')}, {format_count(plan.num_active_parameters)} active"
    stored = plan.spec.objective.probabilities if plan.spec.objective else None
    if stored:
        num_bytes = count_stored_bytes(stored.per_token, plan.spec.model.vocab_size)
        of_step = format_size(num_bytes * plan.tokens_per_step)
        parameters += f" · stored probabilities: {num_bytes:,} B a token, {of_step} a step"
    teacher = plan.spec.objective.teacher if plan.spec.objective else None
    return f"{parameters} · teacher of {format_count(resolve(teacher.model).num_parameters)}" if teacher else parameters


def _size_status(plan: Plan, size: SizePlan) -> SizeStatus:
    devices = size.num_slices * plan.shape.num_devices
    if size.layout is None:
        return SizeStatus(slices=size.num_slices, devices=devices, valid=False, why=size.invalid_reason)
    return SizeStatus(
        slices=size.num_slices,
        devices=devices,
        valid=True,
        mesh="" if plan.spec.command_program else describe_mesh(size.layout),
        rows_per_shard=size.layout.rows_per_shard,
        microbatches=size.layout.microbatches,
        accumulation=size.layout.accumulation,
        padding_rows=size.layout.padding_rows,
        memory_bytes=size.memory.total if size.memory else 0,
    )
