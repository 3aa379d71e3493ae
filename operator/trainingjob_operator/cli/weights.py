"""`trainingjob import`, `export` and `sample`: weights on this machine, without a cluster.

The trainer reads and writes the files in a separate process.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trainingjob_api.base import is_bucket
from trainingjob_api.huggingface.registry import write_config
from trainingjob_api.spec.checkpoint import AdapterFormat
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.weights_exchange import (
    ExchangeAnswer,
    ExportReport,
    ExportRequest,
    InspectRequest,
    ModelRequest,
    SampleRequest,
    WeightsReport,
)
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import CommandError, NoResultError, UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.trainer_child import TrainerChild, absolute_location, require_trainer
from trainingjob_operator.cli.validate_command import require_trainer_job
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_count, format_size, pluralize

PROGRAM = ("-P", "-m", "trainingjob_trainer.weights_exchange")
"""Python arguments that run the trainer's part."""
MAX_NAMES = 10
"""Number of tensors of each kind that the report lists without `--all`."""


class ExportOptions(NamedTuple):
    """The options of an export. None: that of the job."""

    source: str | None
    """A folder of this machine, or a folder of a bucket."""
    step: int | None
    dtype: str | None
    max_file_bytes: int
    adapter: str | None = None


def import_folder(folder: str, *, as_json: bool, show_all: bool) -> bool:
    """Print the model section and the report of a folder; return whether a job can start from it.

    Raises:
        CommandError: the folder cannot be read, or no model section expresses it.
    """
    require_trainer("import")
    report = _inspect(folder)
    if as_json:
        echo(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        echo(yaml.safe_dump({"model": report.section}, sort_keys=False), nl=False)
        for line in _describe(report, show_all=show_all):
            echo(line, err=True)
    return not report.missing and not report.misfits


def export_checkpoint(file: str, target: str, options: ExportOptions, catalog: Catalog) -> None:
    """Export a checkpoint of a file's TrainingJob, and print what was written.

    Raises:
        CommandError: the job is invalid, no step is intact, or the target cannot be written.
    """
    require_trainer("export")
    job = read_single_job(file)
    plan, _ = require_trainer_job(job, "export", catalog)
    spec = plan.spec
    if write_config(spec.model) is None:
        raise CommandError("spec.model: no supported architecture of transformers computes this model.")
    request = ExportRequest(
        spec=spec,
        source=absolute_location(options.source or spec.checkpoint.uri),
        step=options.step,
        target=absolute_location(target),
        dtype=_choose_dtype(spec, options.dtype),
        max_file_bytes=options.max_file_bytes,
        adapter=_choose_adapter(spec, options.adapter),
    )
    exported = _export(request)
    echo(
        f"exported step {exported.step:,} to {target}: {exported.architecture}, {request.dtype}, "
        f"{pluralize(exported.num_files, 'file')}"
    )


def require_folder(request: ModelRequest) -> None:
    """Check that the paths of a request exist.

    Raises:
        CommandError: one does not.
    """
    if not is_bucket(request.path) and not Path(request.path).is_dir():
        raise UsageError(f"CHECKPOINT: {request.path} must be a folder.")
    if request.tokenizer and not Path(request.tokenizer).is_file():
        raise UsageError(f"--tokenizer: {request.tokenizer} must be a tokenizer.json file.")


def sample_folder(request: SampleRequest) -> None:
    """Print a prompt, and the text of the model after it as soon as each token exists.

    Raises:
        CommandError: the folder has no such weights, or the prompt does not fit.
    """
    require_trainer("sample")
    require_folder(request)
    sampled = None
    with TrainerChild(PROGRAM, "trainer") as trainer:
        for number, line in enumerate(trainer.answer(request.model_dump_json())):
            answer = read_answer(trainer, line)
            echo((request.prompt if number == 0 else "") + answer.text, nl=False)
            sampled = answer.sampled or sampled
    if sampled is None:
        raise NoResultError("the trainer ended without an answer.")
    echo("")
    origin = request.path if sampled.step is None else f"step {sampled.step:,} of {request.path}"
    limit = "" if sampled.is_ended else "; --max-tokens raises the limit"
    echo(f"{pluralize(sampled.num_tokens, 'token')} from {origin}{limit}", err=True)


def _choose_dtype(spec: TrainingJobSpec, dtype: str | None) -> Any:
    """Return the format to export: the given one, that of the job's export, or that of its parameters."""
    dtypes = ("float32", "bfloat16", "float16")
    if dtype is not None and dtype not in dtypes:
        raise UsageError(f"--dtype: {dtype} must be one of: {', '.join(dtypes)}.")
    export = spec.checkpoint.export
    return dtype or (export and export.hugging_face.dtype) or spec.precision.params


def _choose_adapter(spec: TrainingJobSpec, adapter: str | None) -> Any:
    """Return what becomes of adapters: the given choice, that of the job's export, or `merged`."""
    formats = get_args(AdapterFormat)
    if adapter is not None and adapter not in formats:
        raise UsageError(f"--adapter: {adapter} must be one of: {', '.join(formats)}.")
    if adapter is not None and spec.lora is None:
        raise UsageError("--adapter must not be set for a job without `spec.lora`.")
    export = spec.checkpoint.export
    return adapter or (export and export.hugging_face.adapter) or "merged"


def _inspect(folder: str) -> WeightsReport:
    console = SafeConsole(stderr=True)
    with TrainerChild(PROGRAM, "trainer") as trainer, console.status(f"reading {folder}"):
        for line in trainer.answer(InspectRequest(path=absolute_location(folder)).model_dump_json()):
            answer = read_answer(trainer, line)
            if answer.report:
                return answer.report
    raise NoResultError("the trainer ended without an answer.")


def _export(request: ExportRequest) -> ExportReport:
    for answer in answer_with_progress(request, "exporting"):
        if answer.exported:
            return answer.exported
    raise NoResultError("the trainer ended without an answer.")


def answer_with_progress(request: BaseModel, activity: str) -> Iterator[ExchangeAnswer]:
    """Yield the answers to a request, and show its progress on a terminal.

    Raises:
        CommandError: the trainer reports an error, or its answer cannot be read.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    with (
        TrainerChild(PROGRAM, "trainer") as trainer,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(activity, total=None)
        for line in trainer.answer(request.model_dump_json()):
            answer = read_answer(trainer, line)
            if answer.progress:
                bar.update(task, completed=answer.progress.done, total=answer.progress.total)
            yield answer


def read_answer(trainer: TrainerChild, line: str) -> ExchangeAnswer:
    """Return the answer of a line.

    Raises:
        CommandError: the trainer reports an error, or its answer cannot be read.
    """
    answer = trainer.parse(ExchangeAnswer, line)
    if answer.error:
        raise NoResultError(answer.error)
    return answer


def _describe(report: WeightsReport, *, show_all: bool) -> list[str]:
    """Return the lines of the report."""
    size = f"{format_count(report.num_parameters)} parameters, {format_size(report.num_bytes)}"
    lines = [f"{report.model_type}: {size}, {pluralize(len(report.matched), 'tensor')} matched"]
    kinds = {"missing": report.missing, "of another shape or format": report.misfits, "not used": report.unused}
    for kind, names in kinds.items():
        if names:
            lines.append(f"{pluralize(len(names), 'tensor')} {kind}:")
            shown = names if show_all else names[:MAX_NAMES]
            lines += [f"  {name}" for name in shown]
            lines += [f"  and {len(names) - len(shown):,} more: --all lists them"] if len(shown) < len(names) else []
    return lines
