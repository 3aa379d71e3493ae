"""`trainingjob run`: a job on this machine, without a cluster."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainingjob_api.base import is_bucket
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import Document, read_single_job
from trainingjob_operator.cli.errors import CommandError, UsageError
from trainingjob_operator.cli.local.container import find_program
from trainingjob_operator.cli.local.local_spec import external_variables, localize_spec
from trainingjob_operator.cli.local.objects import new_uid
from trainingjob_operator.cli.local.operator_log import capture_operator_log
from trainingjob_operator.cli.local.path_translation import Mounts, move_path
from trainingjob_operator.cli.local.resume import has_succeeded, new_job, resume_job
from trainingjob_operator.cli.local.runner import ScheduledKill, run_job
from trainingjob_operator.cli.local.view import choose_view
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.cli.report import describe_attempts, describe_goodput, describe_progress, find_condition
from trainingjob_operator.cli.validate_command import require_valid, warning_lines
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.manifests import Manifest, get_int
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.summary import describe_parameters
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.validate_update import warn_of_update
from trainingjob_operator.render.volumes import CACHE_FOLDER

FOLDER = "trainingjob-runs"
AGENT = "trainingjob-agent"
SUCCEEDED, FAILED, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True)
class Options:
    """The user's options."""

    num_slices: int | None = None
    """None: as many as the spec allows."""
    folder: Path | None = None
    """None: a folder with the job's name below `FOLDER`."""
    volumes: Sequence[str] = ()
    """Each is `NAME=FOLDER`."""
    fresh: bool = False
    faults: Sequence[ScheduledKill] = ()


def run_file(file: str, options: Options, catalog: Catalog, console: SafeConsole) -> int:
    """Run a file's TrainingJob until it has ended; return the exit code.

    Raises:
        CommandError: the job cannot be started; the text gives the reason.
    """
    document = read_single_job(file)
    plan, _ = require_valid(document, catalog)
    _require_cpu(plan)
    missing = _missing_variables(plan.spec)
    _require_linux()
    _require_trainer()
    workspace = Workspace(options.folder or Path(FOLDER) / document.name)
    with workspace.locked():
        volumes = {CACHE_FOLDER: workspace.cache, **workspace.bind_volumes(plan.spec.runtime.volumes, options.volumes)}
        spec = localize_spec(plan.spec, options.num_slices)
        plan, warnings = require_valid(Document(document.location, {**document.content, "spec": spec}), catalog)
        _require_slices(plan, options.faults)
        checkpoints = move_path(plan.spec.checkpoint.uri, volumes)
        for line in (headline(document.name, plan), *warning_lines(warnings), *missing):
            _print(console, line)
        if options.fresh:
            backup = plan.spec.checkpoint.backup
            workspace.delete_results(checkpoints, *([move_path(backup.uri, volumes)] if backup else []))
        job = _open_job(document.name, spec, workspace, console)
        if has_succeeded(job):
            _print(console, "an earlier run has completed training; --fresh restarts at step 0")
        else:
            if (checkpoint := read_status(job).checkpoint) is not None:
                _print(console, f"resumes from step {checkpoint.step:,}, the newest checkpoint of an earlier run")
            job = _run(job, volumes, workspace, options.faults, catalog, console)
        return print_result(job, checkpoints, workspace, console)


def headline(name: str, plan: Plan) -> str:
    """Return the model, the hardware and the number of steps on one line."""
    shape, training = plan.shape, plan.spec.training
    length = pluralize(training.steps, "step") if training.steps else f"{training.epochs or 0:g} epochs"
    parts = (
        name,
        describe_parameters(plan),
        shape.accelerator,
        " x ".join(
            (
                pluralize(plan.allowed_sizes[-1], "slice"),
                pluralize(shape.num_hosts, "host"),
                pluralize(shape.devices_per_host, "device"),
            )
        ),
        *([] if plan.spec.command_program else [length]),
    )
    return " · ".join(parts)


def _open_job(name: str, spec: dict[str, Any], workspace: Workspace, console: SafeConsole) -> Manifest:
    job = workspace.load_job()
    if job is None:
        return new_job(name, spec, new_uid(), datetime.now(UTC))
    resumed = resume_job(job, spec)
    for line in warning_lines(warn_of_update(job, resumed)):
        _print(console, line)
    return resumed


def _run(
    job: Manifest,
    volumes: Mounts,
    workspace: Workspace,
    faults: Sequence[ScheduledKill],
    catalog: Catalog,
    console: SafeConsole,
) -> Manifest:
    with choose_view(console, _read_steps(job)) as view, capture_operator_log(workspace, view):
        return asyncio.run(run_job(job, volumes, workspace, view, faults, catalog))


def _read_steps(job: Manifest) -> int | None:  # None: unknown
    return get_int(job, "spec", "training", "steps") or get_int(job, "spec", "program", "steps")


def print_result(job: Manifest, checkpoints: str, workspace: Workspace, console: SafeConsole) -> int:
    """Print the result of the run; return the exit code."""
    status = read_status(job)
    failed = find_condition(status, "Failed")
    if status.progress:
        _print(console, describe_progress(status.progress, speed=True, rest=False))
    for line in (*describe_attempts(status.attempts), *describe_goodput(status.goodput)):
        _print(console, line)
    location = checkpoints if is_bucket(checkpoints) else _relative_path(Path(checkpoints))
    _print(console, f"checkpoints and metrics in {location}, logs in {_relative_path(workspace.logs)}")
    if failed and failed.status == "True":
        _print(console, f"failed: {failed.message}")
        return FAILED
    if status.phase == Stage.SUCCEEDED:
        return SUCCEEDED
    save_note = f"saved step {status.checkpoint.step:,}" if status.checkpoint else "without a saved step"
    _print(console, f"stopped; {save_note}; the same command resumes")
    return INTERRUPTED


def _require_linux() -> None:
    if sys.platform != "linux":
        raise UsageError(
            "`trainingjob run` needs Linux: its hosts read their processes and memory from /proc and /dev/shm. Use a "
            "Linux container or virtual machine; the other commands work here."
        )


def _require_trainer() -> None:
    find_program(AGENT)
    if importlib.util.find_spec("jax") is None:
        raise UsageError("jax is not installed here. Install the trainer too: pip install 'trainingjob[trainer]'.")


def _require_cpu(plan: Plan) -> None:
    if plan.shape.platform != "cpu":
        raise CommandError(
            f"spec.slices.accelerator: {plan.shape.accelerator} must be `cpu` for a run without a cluster. "
            "To try the job, set accelerator: cpu, topology: 2x2, and a model that fits."
        )


def _require_slices(plan: Plan, faults: Sequence[ScheduledKill]) -> None:
    """Check the faults. One that never happens would look like a recovery without a cost."""
    num_slices, steps = plan.allowed_sizes[-1], plan.spec.steps
    for fault in faults:
        if fault.slice >= num_slices:
            raise UsageError(
                f"--kill-slice: {fault.slice} must be less than {num_slices}, the number of slices of this run. Slices "
                "are numbered from 0."
            )
        if steps and fault.step >= steps:
            raise UsageError(f"--at-step: {fault.step} must be less than {steps}, the number of steps of the job.")


def _missing_variables(spec: TrainingJobSpec) -> list[str]:
    missing = [
        pod_variable for pod_variable in external_variables(spec) if pod_variable.variable.name not in os.environ
    ]
    return [
        f"Warning  spec.{path}: {variable.name} is not set in this shell; there are no Secrets here."
        for path, variable in missing
    ]


def _relative_path(path: Path) -> str:
    """Return a path relative to the working directory if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _print(console: SafeConsole, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
