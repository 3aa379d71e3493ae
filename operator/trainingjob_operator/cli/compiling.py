"""`trainingjob plan --compile`: the plan beside what the real compiler makes of it, on a machine without the device.

The trainer compiles, in a process of its own: this program imports neither the trainer nor JAX.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import typer
from pydantic import ValidationError
from rich.console import Console

from trainingjob_api.compiled import CompileAnswer, CompiledStep
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.cli.documents import read_one_job
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.plan import headline
from trainingjob_operator.cli.plan_json import plan_as_object
from trainingjob_operator.cli.tables import align
from trainingjob_operator.cli.validate import require_valid, warning_lines
from trainingjob_operator.core.hardware import Hardware
from trainingjob_operator.core.plan import Plan
from trainingjob_operator.core.run_config import run_config
from trainingjob_operator.core.units import plural, short, size, span

PROGRAM = ("-m", "trainingjob_trainer.compiling")
"""What Python runs: the trainer's compiler."""
LAST_WORDS = 20
"""Lines of the compiler's own output that are shown when it ends without an answer."""


def print_compiled(file: str, hardware: Hardware, *, as_json: bool) -> bool:
    """Print the plan of a file's TrainingJob beside the compiler's figures; return whether every size compiled.

    Raises:
        CommandError: the file has no single valid TrainingJob, or there is no compiler for it here.
    """
    job = read_one_job(file)
    plan, warnings = require_valid(job, hardware)
    require_compiler(plan)
    answers = list(compile_sizes(job.name, plan))
    if as_json:
        compiled = [answer.model_dump(mode="json", by_alias=True) for answer in answers]
        typer.echo(json.dumps({**plan_as_object(job.name, plan, warnings), "compiled": compiled}, indent=2))
    else:
        for line in (headline(job.name, plan), "", *compiled_table(plan, answers), *warning_lines(warnings)):
            typer.echo(line)
    return not any(answer.error for answer in answers)


def require_compiler(plan: Plan) -> None:
    """Check that the compiler for a plan's devices is installed.

    Raises:
        CommandError: it is not; the text says what to install.
    """
    shape = plan.shape
    if shape.platform == "cuda":
        raise CommandError(
            f"spec.slices.accelerator: {shape.accelerator} cannot be compiled for without the device. --compile works "
            "for `cpu` and TPUs."
        )
    if importlib.util.find_spec("trainingjob_trainer") is None or importlib.util.find_spec("jax") is None:
        raise CommandError(
            "--compile needs the trainer, which is not installed here: pip install 'trainingjob[trainer]'."
        )
    has_libtpu = "TPU_LIBRARY_PATH" in os.environ or importlib.util.find_spec("libtpu") is not None
    if shape.platform == "tpu" and not has_libtpu:
        raise CommandError(
            f"--compile needs libtpu for {shape.accelerator}, which is not installed here: "
            "pip install 'trainingjob[trainer,tpu-compile]'."
        )


def compile_sizes(name: str, plan: Plan) -> Iterator[CompileAnswer]:
    """Yield the compiler's answer for each size that can train; a terminal shows which one it is at.

    Raises:
        CommandError: it ended without an answer.
    """
    config = run_config(JobIdentity(name=name, namespace="", uid=""), plan)
    console = Console(stderr=True)
    pipe = subprocess.PIPE
    command = (sys.executable, *PROGRAM)
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True) as process,
    ):
        try:
            yield from _converse(process, config, console)
            if process.wait():
                raise CommandError(f"the compiler ended with exit code {process.returncode}:\n{_last_words(log)}")
        finally:
            process.kill()


def _converse(process: subprocess.Popen[str], config: RunConfig, console: Console) -> Iterator[CompileAnswer]:
    assert process.stdin  # noqa: S101
    assert process.stdout  # noqa: S101
    try:
        process.stdin.write(config.model_dump_json())
        process.stdin.close()
    except BrokenPipeError:  # it is gone already; its last words say why
        return
    numbers = [layout.num_slices for layout in config.layouts]
    for place, number in enumerate(numbers, 1):
        with console.status(f"compiling for {plural(number, 'slice')}, {place} of {len(numbers)}"):
            line = process.stdout.readline()
        if not line:
            return
        try:
            yield CompileAnswer.model_validate_json(line)
        except ValidationError as error:
            raise CommandError(f"the compiler's answer cannot be read: {line.strip()[:500]}") from error


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-LAST_WORDS:])


def compiled_table(plan: Plan, answers: list[CompileAnswer]) -> list[str]:
    """Return one line a size: each estimate and how far it is from the compiler's figure; below, what did not compile.

    Memory, FLOPs and bytes are those of one device and one step.
    """
    estimates = {one.num_slices: one.memory for one in plan.sizes if one.memory}
    headings = ("slices", "memory", "compiler's", "FLOPs", "ICI sends", "DCN sends", "compiled in")
    rows: list[tuple[str, ...]] = [headings]
    for answer in answers:
        if step := answer.step:
            estimate = estimates[answer.num_slices].total
            rows.append(
                (
                    str(answer.num_slices),
                    size(estimate),
                    f"{size(step.memory)} ({_off(estimate, step.memory)})",
                    short(step.flops),
                    _sends(step, "ici"),
                    _sends(step, "dcn"),
                    span(step.seconds),
                )
            )
    failed = [f"{plural(one.num_slices, 'slice')}: {one.error}" for one in answers if one.error]
    return [*(align(rows, right=(0,)) if len(rows) > 1 else ()), *failed]


def _sends(step: CompiledStep, network: str) -> str:
    return size(sum(one.bytes for one in step.collectives if one.network == network))


def _off(estimate: int, measured: int) -> str:
    """Return how far an estimate is from the measure, in percent of it."""
    return f"{(estimate / measured - 1) * 100:+.0f} %" if measured else "-"
