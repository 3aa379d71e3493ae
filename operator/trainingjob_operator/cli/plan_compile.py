"""`trainingjob plan --compile`: the plan beside the real compiler's figures, on a machine without the device.

The trainer compiles in a separate process. This program imports neither the trainer nor JAX.
"""

import importlib.util
import json
import os
from collections.abc import Iterator

from trainingjob_api.base import Axis
from trainingjob_api.compile_report import CompileAnswer, CompiledStep, Network
from trainingjob_api.world import JobIdentity
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.plan_command import headline
from trainingjob_operator.cli.plan_json import plan_as_object
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.trainer_child import TrainerChild, require_trainer
from trainingjob_operator.cli.validate_command import require_trainer_job, warning_lines
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.planner.flops import count_visible_flops
from trainingjob_operator.core.planner.plan import Plan, SizePlan
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.units import format_count, format_size, pluralize

PROGRAM = ("-P", "-m", "trainingjob_trainer.compile_report")
"""Python arguments that run the trainer's compiler."""
MIN_SHOWN_SHARE = 0.01
"""Share of the largest traffic below which traffic is not shown, such as that of scalars and norms."""


def print_compiled(file: str, catalog: Catalog, *, as_json: bool) -> bool:
    """Print the plan of a file's TrainingJob beside the compiler's figures; return whether every size compiled.

    Raises:
        CommandError: the file does not hold exactly one valid TrainingJob, or no compiler for it is installed.
    """
    job = read_single_job(file)
    plan, warnings = require_trainer_job(job, "plan --compile", catalog)
    require_compiler(plan)
    answers = list(compile_sizes(job.name, plan))
    if as_json:
        compiled = [answer.model_dump(mode="json", by_alias=True) for answer in answers]
        echo(json.dumps({**plan_as_object(job.name, plan, warnings), "compiled": compiled}, indent=2))
    else:
        for line in (headline(job.name, plan), "", *compiled_table(plan, answers), *warning_lines(warnings)):
            echo(line)
    return not any(answer.error for answer in answers)


def require_compiler(plan: Plan) -> None:
    """Check that the compiler for a plan's devices is installed.

    Raises:
        CommandError: it is missing, with the package to install, or the platform cannot be compiled for.
    """
    shape = plan.shape
    if shape.platform == "cuda":
        raise UsageError(
            f"spec.slices.accelerator: {shape.accelerator} needs its device to compile. --compile works for `cpu` and "
            "TPUs."
        )
    require_trainer("--compile")
    has_libtpu = "TPU_LIBRARY_PATH" in os.environ or importlib.util.find_spec("libtpu") is not None
    if shape.platform == "tpu" and not has_libtpu:
        raise UsageError(
            f"--compile needs libtpu for {shape.accelerator}, which is not installed here: "
            "pip install 'trainingjob[trainer,tpu-compile]'."
        )


def compile_sizes(name: str, plan: Plan) -> Iterator[CompileAnswer]:
    """Yield the compiler's answer for each size that can train. A terminal shows the progress.

    Raises:
        CommandError: the compiler failed, or its answer cannot be read.
    """
    config = build_run_config(JobIdentity(name=name, namespace="", uid=""), plan)
    console = SafeConsole(stderr=True)
    sizes = [layout.num_slices for layout in config.layouts]
    with TrainerChild(PROGRAM, "compiler") as compiler:
        answers = compiler.answer(config.model_dump_json())
        for position, num_slices in enumerate(sizes, 1):
            with console.status(f"compiling for {pluralize(num_slices, 'slice')}, {position} of {len(sizes)}"):
                line = next(answers, None)
            if line is None:
                return
            yield compiler.parse(CompileAnswer, line)
        next(answers, None)  # an error after the last answer


def compiled_table(plan: Plan, answers: list[CompileAnswer]) -> list[str]:
    """Return the estimate and the compiler's figure of each size with the deviation, then the failures.

    Memory, FLOPs and bytes are per device and per step.
    """
    sizes = {size.num_slices: size for size in plan.sizes}
    rows: list[tuple[str, ...]] = [("slices", "what", "estimate", "compiler", "off")]
    for answer in answers:
        if answer.step:
            rows += [(str(answer.num_slices), *row) for row in _compare(plan, sizes[answer.num_slices], answer.step)]
    failed = [f"{pluralize(answer.num_slices, 'slice')}: {answer.error}" for answer in answers if answer.error]
    return [*(align(rows, right=(0, 2, 3, 4)) if len(rows) > 1 else ()), *failed]


def _compare(plan: Plan, size: SizePlan, step: CompiledStep) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name of each quantity, its estimate, the compiler's figure, and the deviation of the estimate."""
    assert size.layout  # noqa: S101
    assert size.memory  # noqa: S101
    workload = describe_workload(plan.spec)
    flops = count_visible_flops(workload, size.layout)
    yield (
        "memory",
        format_size(size.memory.total),
        format_size(step.memory),
        _format_deviation(size.memory.total, step.memory),
    )
    yield "FLOPs", format_count(flops), format_count(step.flops), _format_deviation(flops, step.flops)
    predicted = sum_by_axes(predict_traffic(workload, size.layout, plan.shape.platform))
    compiled = sum_compiled(step)
    floor = MIN_SHOWN_SHARE * max([*predicted.values(), *compiled.values()], default=0)
    for key in sorted({*predicted, *compiled}):
        estimate, compiled_bytes = predicted.get(key, 0), compiled.get(key, 0)
        if max(estimate, compiled_bytes) > floor:
            yield (
                f"sent over {key[0]} along {', '.join(key[1])}",
                format_size(estimate),
                format_size(compiled_bytes),
                _format_deviation(estimate, compiled_bytes),
            )


def sum_compiled(step: CompiledStep) -> dict[tuple[Network, tuple[Axis, ...]], int]:
    """Return the bytes of a compiled step by network and set of axes."""
    sums: dict[tuple[Network, tuple[Axis, ...]], int] = {}
    for collective in step.collectives:
        sums[collective.network, collective.axes] = (
            sums.get((collective.network, collective.axes), 0) + collective.bytes
        )
    return sums


def _format_deviation(estimate: int, measured: int) -> str:
    """Return the deviation of an estimate from the measured value, in percent of the measured value."""
    return f"{(estimate / measured - 1) * 100:+.0f} %" if measured else "-"
